#pragma once
/// Makes a step of the records of existing steps (CheckpointStore::Edit).

#include <cstdint>

#include "core/rewrite/step_edit.h"
#include "kv/base/error.h"
#include "kv/base/step_info.h"
#include "kv/store.h"

namespace cairn::core::internal {

/// Contract: CheckpointStore::Edit. Requires that no save is running.
Result<kv::StepInfo> RunEdit(kv::Store& store, uint64_t source, uint64_t into,
                             const StepEdit& edit);

}  // namespace cairn::core::internal
