#pragma once
/// Listing the keys of a step and comparing two steps.

#include "core/checkpoint_store.h"
#include "core/internal/lookup.h"

namespace cairn::core::internal {

/// See CheckpointStore::List.
Result<Contents> RunList(const StepView& view, const KeyPatterns& patterns);

/// See CheckpointStore::Compare.
Result<Diff> RunCompare(const StepView& a, const StepView& b, const KeyPatterns& patterns);

}  // namespace cairn::core::internal
