#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Errors of a save that do not depend on the contents of the store.

#include "core/save/save_options.h"
#include "core/state_dict/state_dict.h"
#include "kv/base/error.h"

namespace cairn::core {

/// Returns the kInvalidArgument that CheckpointStore::Save would return whatever the store
/// contains. For callers that create a store only if they have something to save. Cost: plans the
/// save, and reads no payload. kResourceExhausted: not enough memory.
Result<void> CheckSave(const StateDict& state, const SaveOptions& options);

}  // namespace cairn::core
