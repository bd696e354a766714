#pragma once
/// Host memory that a state is copied into before it is written behind the training.

#include <cstddef>
#include <cstdint>

#include "core/base/internal/worker_pool.h"
#include "core/save/internal/save.h"
#include "core/save/internal/saved_chunks.h"

namespace cairn::core::internal {

/// One region of pages, kept from save to save and replaced only by a larger one.
/// Ownership: owns the memory that staged tensors point to. Threads: one at a time.
class StagingArea {
 public:
  StagingArea() : pool_(std::min<size_t>(2, WorkerPool::DefaultThreadCount())) {}
  ~StagingArea();
  StagingArea(const StagingArea&) = delete;
  StagingArea& operator=(const StagingArea&) = delete;

  /// Copies what the plan's pieces in host memory hold into this area and lets them point there, row-major.
  /// Valid until the next Stage. kResourceExhausted: no memory; the plan is as it was then.
  ///
  /// With `base`, the chunks that the save of it found unchanged are digested first, which costs
  /// less than a copy, and are not copied if they are the base's still: see
  /// PlannedShard::unchanged. Those that had changed are taken to have changed again.
  Result<void> Stage(SavePlan& plan, const SavedChunks* base);

  /// Address space held. Memory is behind what was ever copied.
  uint64_t capacity_bytes() const { return capacity_bytes_; }

 private:
  Result<void> Reserve(uint64_t bytes);

  std::byte* memory_ = nullptr;
  uint64_t capacity_bytes_ = 0;
  WorkerPool pool_;  // two threads reach what memory gives
};

}  // namespace cairn::core::internal
