#pragma once
/// Repairs what a crash left behind.

#include <chrono>

#include "kv/internal/commit/store_state.h"
#include "kv/thread_annotations.h"

namespace cairn::kv::internal {

/// Returns whether the index opens, all its tables match their checksums and no committed step is
/// missing.
bool IndexIsWhole(const StorePaths& paths, std::chrono::milliseconds deadline);

/// Completes or undoes what a crash interrupted; see kv/store.h. Without `sweep`, removes no
/// segment, even if the index does not refer to it. Requires the writer's lock and an open index.
Result<void> Recover(StoreState& state, bool sweep = true) CAIRN_REQUIRES(state.write_mutex)
    CAIRN_EXCLUDES(state.mutex);

/// Gives all *.deleting files their former names. Only the lost index recorded whether those
/// deletes were committed, and restoring a deleted step is better than losing one. Requires the
/// writer's lock.
Result<void> UndoAllDeletes(StoreState& state);

}  // namespace cairn::kv::internal
