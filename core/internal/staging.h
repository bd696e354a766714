#pragma once
/// Host memory that a state is copied into before it is written behind the training.

#include <cstddef>
#include <memory>
#include <span>

#include "core/internal/aliases.h"
#include "core/internal/worker_pool.h"
#include "core/state_dict.h"

namespace cairn::core::internal {

/// One region of pages, kept from save to save and replaced only by a larger one.
/// Ownership: owns the memory that staged tensors point to. Threads: one at a time.
class StagingArea {
 public:
  StagingArea() : pool_(std::min<size_t>(2, WorkerPool::DefaultThreadCount())) {}
  ~StagingArea();
  StagingArea(const StagingArea&) = delete;
  StagingArea& operator=(const StagingArea&) = delete;

  /// The same state with its tensors in this area; what overlapped in memory overlaps likewise.
  /// Valid until the next Copy. kInvalidArgument: a bad tensor. kResourceExhausted: no memory.
  Result<StateDict> Copy(const StateDict& state);

  uint64_t capacity_bytes() const { return capacity_bytes_; }

 private:
  Result<void> Reserve(uint64_t bytes);

  std::byte* memory_ = nullptr;
  uint64_t capacity_bytes_ = 0;
  WorkerPool pool_;  // two threads reach what memory gives
};

}  // namespace cairn::core::internal
