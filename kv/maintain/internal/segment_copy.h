#pragma once
/// Copies one sealed segment to another store.

#include <cstdint>
#include <functional>

#include "kv/base/copy_options.h"
#include "kv/base/error.h"
#include "kv/base/step_info.h"
#include "kv/read/internal/snapshot_state.h"
#include "kv/state/internal/store_state.h"

namespace cairn::kv::internal {

/// The state that the copies of one call share. Ownership: all members outlive the copies.
struct CopyContext {
  const SnapshotState* source;  // may change between copies
  StoreState& target;
  Throttle& throttle;
  /// Called after `bytes` were written, and with 0 while a copy waits. If it returns an error,
  /// which means that the user has asked to stop, the copy ends. Threads: called on several
  /// threads.
  std::function<Result<void>(uint64_t bytes)> progress;
};

/// Copies a segment to the target, with a header that names the target and its copy_epoch; all
/// other bytes are equal to the source. The segment is durable, except for its name in a storage
/// with LocalFiles. Returns its record. Requires that nobody has written this name before.
///
/// kDataLoss: a page of the source does not match its digest, or its header, footer or trailer are
/// damaged; the error names the object of the source. kNotFound: the source was deleted. Returns
/// the errors of `progress` and of both storages, too. After an error there is no object in the
/// target. Memory: the blocks of the target's pool and of the source's read pool, the page digests
/// and the footer. Threads: many may copy at once.
Result<SegmentInfo> CopySegment(const CopyContext& context, const SegmentInfo& info);

}  // namespace cairn::kv::internal
