#pragma once
// SPDX-License-Identifier: Apache-2.0
/// What a save refuses whatever the store contains.

#include "core/save/save_options.h"
#include "core/state_dict/state_dict.h"
#include "kv/base/error.h"

namespace cairn::core {

/// Finds what CheckpointStore::Save refuses with kInvalidArgument whatever the store contains. For
/// those who create a store only if they have something to save. Cost: that of planning the save,
/// which reads no payload. kResourceExhausted: not enough memory.
Result<void> CheckSave(const StateDict& state, const SaveOptions& options);

}  // namespace cairn::core
