#pragma once
/// Mapping files that others wrote.

#include <memory>
#include <string>

#include "kv/mapping.h"


namespace cairn::core::internal {

/// The whole file, read-only; an empty file has an empty mapping. It must not be truncated while it
/// is mapped: touching bytes that are gone ends the process (kv::Mapping::Populate says so first).
/// kNotFound, kUnavailable: it cannot be opened or mapped. kDataLoss: it is no regular file.
Result<std::shared_ptr<const kv::Mapping>> MapFile(const std::string& path);

}  // namespace cairn::core::internal
