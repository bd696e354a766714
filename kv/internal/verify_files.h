#pragma once
/// Checks of everything that does not require knowledge of tensors.

#include <cstdint>
#include <functional>
#include <vector>

#include "kv/error.h"
#include "kv/internal/snapshot_state.h"
#include "kv/read_range.h"
#include "kv/step_info.h"

namespace cairn::kv::internal {

/// The contents of the index, to be compared with the files.
struct IndexedSegments {
  Result<std::vector<SegmentInfo>> segments;
  Result<std::vector<Usage>> usage;
  /// Calls the callback with every chunk record of a generation.
  std::function<Result<void>(uint64_t generation, const ScanCallback&)> scan_chunks;
};

/// See Snapshot::VerifyFiles.
Result<void> VerifyFiles(const SnapshotState& snapshot, const IndexedSegments& indexed,
                         const std::function<void(Damage)>& damage);

}  // namespace cairn::kv::internal
