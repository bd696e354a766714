#pragma once
/// Maps files that other programs wrote.

#include <memory>
#include <string>

#include "kv/base/mapping.h"

namespace cairn::core::internal {

/// Maps the complete file read-only; the mapping of an empty file is empty. The file must not be
/// truncated while it is mapped: touching bytes that no longer exist ends the process
/// (kv::Mapping::Populate returns an error instead). kNotFound, kUnavailable: the file cannot be
/// opened or mapped. kDataLoss: it is not a regular file.
Result<std::shared_ptr<const kv::Mapping>> MapFile(const std::string& path);

}  // namespace cairn::core::internal
