#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Changes records of chunks of committed steps: their places, for a repair, and their statistics.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "kv/base/chunk_record.h"
#include "kv/base/error.h"
#include "kv/base/step_info.h"

namespace cairn::kv {

class Store;

/// A chunk, as the records of one or more steps have it.
struct StoredChunk {
  std::string key;
  ChunkEntry entry;
};

struct ReplaceReport {
  uint64_t written_bytes = 0;    // payload
  uint64_t rewritten_steps = 0;  // steps whose records were changed
};

/// Writes each of `chunks`, without deltas, to a new segment, and rewrites the records of all steps
/// that have this chunk, in one commit. `bytes_of(i)` returns the bytes of chunks[i], and is called
/// once for each, in order. No step changes: its keys, bytes and digests remain. The segments that
/// no step uses any more are removed when the grace period has passed. Memory: a chunk, and 300
/// bytes for each of `chunks`.
///
/// kDataLoss: the bytes do not match the digest of the chunk; nothing is changed. Returns the
/// errors of Compact and of `bytes_of`, too.
Result<ReplaceReport> ReplaceChunks(
    Store& store, std::span<const StoredChunk> chunks,
    const std::function<Result<std::vector<std::byte>>(size_t i)>& bytes_of);

/// Statistics of the chunks of one step, by key.
using StatisticsOfChunks = std::unordered_map<std::string, ChunkStatistics>;

/// Adds the statistics to the records of `step` that have none, in one commit. Nothing else of the
/// step changes: it keeps its generation. Returns whether the step was written; not if it was
/// deleted or replaced since it was found. Memory: 64 MiB per table that is compared. Returns the
/// errors of Compact, except kCancelled.
Result<bool> RecordStatistics(Store& store, const StepInfo& step,
                              const StatisticsOfChunks& statistics);

}  // namespace cairn::kv
