#pragma once
/// Reads bytes in the safetensors format: a file, or a part of another file.

#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/interop/safetensors/safetensors_format.h"
#include "kv/base/error.h"

namespace cairn::core::internal {

struct SafetensorsContents {
  std::vector<SafetensorsTensor> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
};

/// Reads the header of `file`; the bytes of the tensors are views of `file`. kDataLoss: it is not
/// in the safetensors format, or damaged. kUnimplemented: this version does not know a dtype.
/// Memory: proportional to the header.
Result<SafetensorsContents> ReadSafetensors(std::span<const std::byte> file);

}  // namespace cairn::core::internal
