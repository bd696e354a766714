#pragma once
/// Compares two steps.

#include "core/inspect/diff.h"
#include "core/state_dict/key_pattern.h"
#include "core/step/internal/lookup.h"

namespace cairn::core::internal {

/// See CheckpointStore::Compare.
Result<Diff> RunCompare(const StepView& a, const StepView& b, const KeyPatterns& patterns);

}  // namespace cairn::core::internal
