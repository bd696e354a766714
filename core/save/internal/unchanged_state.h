#pragma once
/// Finds out whether the bytes of a complete state equal the bytes that the last save wrote.

#include <cstdint>

#include "core/base/progress.h"
#include "core/save/internal/save_plan.h"
#include "core/save/internal/saved_chunks.h"
#include "kv/base/error.h"
#include "kv/io/worker_pool.h"

namespace cairn::core::internal {

struct StateComparison {
  bool is_unchanged = false;
  uint64_t compared_bytes = 0;  // reported as progress
};

/// Digests the chunks of the plan, except chunks that are taken from the base, in order, on all
/// threads of the pool, until one has another digest than in `saved`. The page digests of the
/// chunks up to there are then in PlannedShard::pages, so that the save does not compute them
/// again. Requires tensors in host memory, and that `saved` has the shards and chunks of the plan.
/// Memory: 8 bytes per 64 KiB page. kCancelled: as asked by `progress`.
Result<StateComparison> CompareState(SavePlan& plan, const SavedChunks& saved, kv::WorkerPool& pool,
                                     const Progress& progress);

}  // namespace cairn::core::internal
