#pragma once
/// Host memory to which a state is copied, so that it can be written in the background.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/base/internal/worker_pool.h"
#include "core/save/internal/save_plan.h"
#include "core/save/internal/saved_chunks.h"

namespace cairn::core::internal {

/// One memory region, which is kept from save to save and replaced only by a larger one.
/// Ownership: owns the memory that staged tensors point to. Threads: one at a time.
class StagingArea {
 public:
  StagingArea() : pool_(std::min<size_t>(2, WorkerPool::DefaultThreadCount())) {}
  ~StagingArea();
  StagingArea(const StagingArea&) = delete;
  StagingArea& operator=(const StagingArea&) = delete;

  /// Copies the shards of the plan that are in host memory to this area, row-major, and makes the
  /// plan point to the copies, which are valid until the next call. kResourceExhausted: not enough
  /// memory; the plan is unchanged.
  ///
  /// With `base`, chunks that the previous save found unchanged are digested first, which costs
  /// less than a copy, and are not copied if they are still unchanged (PlannedShard::unchanged).
  /// Chunks that had changed are assumed to have changed again.
  Result<void> Stage(SavePlan& plan, const SavedChunks* base);

  /// Address space that is held. Only what was ever copied to occupies memory.
  uint64_t capacity_bytes() const { return capacity_bytes_; }

 private:
  Result<void> Reserve(uint64_t bytes);

  std::byte* memory_ = nullptr;
  uint64_t capacity_bytes_ = 0;
  WorkerPool pool_;  // two threads saturate the memory bandwidth
};

}  // namespace cairn::core::internal
