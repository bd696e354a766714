#pragma once
/// Checks of everything that does not require knowledge of tensors.

#include <functional>

#include "kv/base/error.h"
#include "kv/base/step_info.h"
#include "kv/read/internal/snapshot_state.h"

namespace cairn::kv::internal {

/// See Snapshot::VerifyFiles.
Result<void> VerifyFiles(const SnapshotState& snapshot, const std::function<void(Damage)>& damage);

}  // namespace cairn::kv::internal
