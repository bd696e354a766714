#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Adds statistics to the records of chunks of committed steps.

#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv/base/chunk_record.h"
#include "kv/base/digest.h"
#include "kv/base/error.h"

namespace cairn::kv {

class Store;

/// Statistics of chunks by key, for each of the digests that the chunk has in different steps.
using StatisticsOfChunks =
    std::unordered_map<std::string, std::vector<std::pair<Digest, ChunkStatistics>>>;

/// Adds the statistics to the records of `steps` that have none and have such a chunk, in one
/// commit. Nothing else of the steps changes: they keep their generation. Steps that were deleted
/// are left out. Returns the number of steps that were written. Memory: 64 MiB per table that is
/// compared. Returns the errors of Compact, except kCancelled.
Result<uint64_t> RecordStatistics(Store& store, const std::set<uint64_t>& steps,
                                  const StatisticsOfChunks& statistics);

}  // namespace cairn::kv
