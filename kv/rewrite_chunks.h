#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Changes records of chunks of committed steps: their places, for a repair, and their statistics.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
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

/// What ReplacePayload writes to new segments.
struct PayloadReplacement {
  std::set<uint64_t> segments;
  /// Chunks, of which the payload and the deltas in `segments` are moved as they are stored.
  std::vector<StoredChunk> moved;
  /// Reads pages of `segments` and their digests, for which there is space.
  std::function<Result<void>(const Extent& pages, std::span<std::byte> bytes,
                             std::span<uint64_t> page_digests)>
      read;
  /// Chunks that are written without deltas.
  std::vector<StoredChunk> rewritten;
  /// Returns the bytes of rewritten[i]. Called once for each, in order.
  std::function<Result<std::vector<std::byte>>(size_t i)> bytes_of;
  /// Called with the length of what was written since the last call. An error ends the operation.
  std::function<Result<void>(uint64_t bytes)> progress;
  bool dry_run = false;  // only reports; no function is called
};

struct ReplaceReport {
  uint64_t written_bytes = 0;    // payload, or what would be written
  uint64_t rewritten_steps = 0;  // steps whose records were changed
};

/// Writes payload to new segments, and rewrites the records of all steps that use it, in one
/// commit. No step changes: its keys, bytes and digests remain. The segments that no step uses any
/// more are removed when the grace period has passed. Memory: 16 MiB, or the largest delta or
/// rewritten chunk, and 300 bytes for each chunk.
///
/// kDataLoss: pages do not match the digests that `read` has returned, a chunk does not match its
/// digest, or two chunks have different pages at the same place. Returns the errors of Compact and
/// of the callbacks, too. After an error, nothing has changed.
Result<ReplaceReport> ReplacePayload(Store& store, const PayloadReplacement& replacement);

/// Statistics of the chunks of one step, by key.
using StatisticsOfChunks = std::unordered_map<std::string, ChunkStatistics>;

/// Adds the statistics to the records of `step` that have none, in one commit. Nothing else of the
/// step changes: it keeps its generation. Returns whether the step was written; not if it was
/// deleted or replaced since it was found. Memory: 64 MiB per table that is compared. Returns the
/// errors of Compact, except kCancelled.
Result<bool> RecordStatistics(Store& store, const StepInfo& step,
                              const StatisticsOfChunks& statistics);

}  // namespace cairn::kv
