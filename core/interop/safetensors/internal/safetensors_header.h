#pragma once
/// The JSON header of a safetensors file. It is hostile input when it is decoded; the encoder
/// checks that the decoder returns what it encoded.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/interop/safetensors/safetensors_format.h"
#include "kv/base/error.h"

namespace cairn::core::internal {

struct SafetensorsHeader {
  struct Tensor {
    std::string name;
    DType dtype = DType::kUnknown;
    Shape shape;               // as torch counts
    uint64_t begin_bytes = 0;  // from the end of the header
    uint64_t end_bytes = 0;
    friend bool operator==(const Tensor&, const Tensor&) = default;
  };
  std::vector<Tensor> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
  friend bool operator==(const SafetensorsHeader&, const SafetensorsHeader&) = default;
};

/// Decodes the header of a file in which `data_bytes` follow it. kDataLoss: it is not a header of
/// this format, or tensors overlap, extend beyond the file or leave bytes between them.
/// kUnimplemented: this version does not know a dtype. Memory: proportional to the header; nested
/// values that the format does not have are refused before they take any.
Result<SafetensorsHeader> DecodeSafetensorsHeader(std::string_view json, uint64_t data_bytes);

struct EncodedSafetensorsHeader {
  std::string json;         // padded with spaces so that the data begins at a multiple of 8 bytes
  uint64_t data_bytes = 0;  // length of all tensors
};
/// Encodes the header of a file with these tensors, in this order. kInvalidArgument: the format
/// cannot express a name, dtype or shape, a name occurs twice, or the header is longer than
/// kMaxSafetensorsHeaderBytes; the error names the key where there is one.
Result<EncodedSafetensorsHeader> EncodeSafetensorsHeader(
    std::span<const SafetensorsEntry> entries, const std::map<std::string, std::string>& metadata);

}  // namespace cairn::core::internal
