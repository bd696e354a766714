#pragma once
/// Eviction of files from the page cache.

#include <string>

#include "kv/base/error.h"

namespace cairn::tools {

/// Writes back every file below `directory` and evicts it from the page cache, so that the next
/// read comes from the device.
Result<void> EvictFromPageCache(const std::string& directory);

}  // namespace cairn::tools
