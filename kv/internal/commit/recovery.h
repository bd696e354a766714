#pragma once
/// Putting right what a crash left behind.

#include <chrono>

#include "kv/internal/commit/store_state.h"

namespace cairn::kv::internal {

/// True if the index opens, every byte of its tables is right and no committed step is missing.
bool IndexIsWhole(const StorePaths& paths, std::chrono::milliseconds deadline);

/// Puts right what a crash left behind; see kv/store.h. Requires the lock and an open index. With
/// `sweep` false no segment is removed, whatever the index says.
Result<void> Recover(StoreState& state, bool sweep = true);
/// *.deleting files get their old names back: whether those deletes went through, only the lost
/// index knew, and a step too many is better than one too few.
Result<void> UndoAllDeletes(StoreState& state);

}  // namespace cairn::kv::internal
