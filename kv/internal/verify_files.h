#pragma once
/// Checks of everything that does not require knowledge of tensors.

#include <functional>

#include "kv/error.h"
#include "kv/internal/snapshot_state.h"
#include "kv/step_info.h"

namespace cairn::kv::internal {

/// See Snapshot::VerifyFiles.
Result<void> VerifyFiles(const SnapshotState& snapshot, const std::function<void(Damage)>& damage);

}  // namespace cairn::kv::internal
