#pragma once
/// The contents of a snapshot.

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
  std::vector<StepEntry> entries;  // the same steps, with their manifests

  /// Requires that a scan of the generation has ended. kNotFound: the step was deleted since the
  /// snapshot was taken, so that the scan may be incomplete.
  Result<void> CheckNotDeleted(uint64_t generation) const;
  /// kNotFound: the segment was removed with a step that was deleted. kDataLoss: the segment or its
  /// record is missing.
  Result<std::shared_ptr<const SegmentFile>> OpenSegment(uint64_t segment_id) const;
  /// Returns the error for a segment that cannot be found: kNotFound if the current index does not
  /// have the segment any more, otherwise kDataLoss.
  Error MissingSegment(uint64_t segment_id, const Error& cause) const;
};

}  // namespace cairn::kv::internal
