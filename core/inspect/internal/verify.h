#pragma once
/// Scrubbing a store: every record decoded and held against the others, every payload byte read.

#include "core/base/progress.h"
#include "core/step/internal/lookup.h"
#include "kv/step_info.h"
#include "kv/store.h"

namespace cairn::core::internal {

/// See CheckpointStore::Verify. Goes on after damage; errors are returned only where nothing more
/// can be said (the store cannot be read at all, or the caller cancelled).
Result<uint64_t> RunVerify(const kv::Store& store, std::optional<uint64_t> step,
                           const std::function<void(const kv::Damage&)>& damage,
                           const Progress& progress);

}  // namespace cairn::core::internal
