#pragma once
/// What a snapshot holds.

#include <cstdint>
#include <memory>
#include <vector>

#include "kv/block_pool.h"
#include "kv/internal/commit/store_state.h"
#include "kv/options.h"
#include "kv/step_info.h"

namespace cairn::kv::internal {

/// Threads: immutable; const members are safe.
struct SnapshotState {
  SnapshotState(const StoreState& store, std::shared_ptr<Index> index,
                const std::vector<StepEntry>& steps);

  StorePaths paths;
  StoreOptions options;
  bool writable = false;
  Uuid uuid{};
  std::shared_ptr<Index> index;
  std::shared_ptr<BlockPool> pool;
  std::shared_ptr<SegmentFiles> files;
  std::shared_ptr<LiveGenerations> live;  // null for readers
  std::vector<StepInfo> steps;
  std::vector<StepEntry> entries;  // as steps, with manifests

  /// kNotFound: the step was deleted.
  Result<void> CheckStillThere(uint64_t generation) const;
  Result<std::shared_ptr<const SegmentFile>> OpenSegment(uint64_t segment_id) const;
  /// kNotFound if the current index no longer has the segment, else kDataLoss.
  Error MissingSegment(uint64_t segment_id, const Error& cause) const;
};

}  // namespace cairn::kv::internal
