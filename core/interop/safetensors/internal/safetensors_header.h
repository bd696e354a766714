#pragma once
/// The JSON header of a safetensors file, parsed and checked as hostile input.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/interop/safetensors/safetensors.h"

namespace cairn::core::internal {

struct SafetensorsHeader {
  struct Tensor {
    std::string name;
    DType dtype = DType::kUnknown;
    Shape shape;               // as torch counts
    uint64_t begin_bytes = 0;  // from the end of the header
    uint64_t end_bytes = 0;
  };
  std::vector<Tensor> tensors;  // by begin_bytes
  std::map<std::string, std::string> metadata;
};

/// `data_bytes` follow the header in the file. Memory: in proportion to the header; nesting is
/// never deeper than the format's. Errors as SafetensorsFile::Open.
Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, uint64_t data_bytes);

/// A whole file of the format, or one that lies inside another file. The tensors' bytes are in
/// `file`. Errors as SafetensorsFile::Open.
struct SafetensorsContents {
  std::vector<SafetensorsTensor> tensors;
  std::map<std::string, std::string> metadata;
};
Result<SafetensorsContents> ReadSafetensors(std::span<const std::byte> file);

/// The header's JSON, padded with spaces so that the data begins on 8 bytes.
Result<std::string> FormatSafetensorsHeader(std::span<const SafetensorsWriter::Entry> entries,
                                            const std::map<std::string, std::string>& metadata,
                                            uint64_t* data_bytes);

}  // namespace cairn::core::internal
