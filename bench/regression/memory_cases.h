#pragma once
/// Cases that work in memory alone: digests, strided copies, keys.

#include <string>

#include "kv/error.h"

namespace cairn::bench {

Result<void> CountWordSum(const std::string& directory);
Result<void> CountDigest(const std::string& directory);
Result<void> CountGatherRows(const std::string& directory);
Result<void> CountGatherTransposed(const std::string& directory);
Result<void> CountScatterRows(const std::string& directory);
Result<void> CountScatterTransposed(const std::string& directory);
Result<void> CountChunkKeys(const std::string& directory);

}  // namespace cairn::bench
