#pragma once
/// Verifies a store: decodes every record, compares the records with each other, and reads every
/// payload byte.

#include "core/base/progress.h"
#include "core/step/internal/lookup.h"
#include "kv/base/step_info.h"
#include "kv/store.h"

namespace cairn::core::internal {

/// See CheckpointStore::Verify. Continues after damage; returns an error only if the store cannot
/// be read at all, this process lacks memory or file descriptors, or the caller has cancelled.
Result<uint64_t> RunVerify(const kv::Store& store, std::optional<uint64_t> step,
                           const std::function<void(const kv::Damage&)>& damage,
                           const Progress& progress, const Progress& record_progress);

}  // namespace cairn::core::internal
