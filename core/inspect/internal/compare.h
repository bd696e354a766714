#pragma once
/// Compares two steps, and one key in all steps.

#include <span>
#include <string>

#include "core/inspect/diff.h"
#include "core/state_dict/key_pattern.h"
#include "core/step/internal/lookup.h"

namespace cairn::core::internal {

/// See CheckpointStore::Compare.
Result<Diff> RunCompare(const StepView& a, const StepView& b, const KeyPatterns& patterns);

/// See CheckpointStore::History. `views` are the steps in ascending order.
Result<void> RunHistory(std::span<const StepView> views, const std::string& fqn,
                        const VersionVisitor& visit);

}  // namespace cairn::core::internal
