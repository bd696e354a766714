#pragma once
/// Listing the keys of a step, what is kept with it, and comparing two steps.

#include <optional>
#include <string_view>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/step/internal/lookup.h"

namespace cairn::core::internal {

/// See CheckpointStore::List.
Result<Contents> RunList(const StepView& view, const KeyPatterns& patterns);

/// See CheckpointStore::FindAnnex.
Result<std::optional<std::vector<std::byte>>> FindAnnex(const StepView& view,
                                                        std::string_view name);

/// See CheckpointStore::Compare.
Result<Diff> RunCompare(const StepView& a, const StepView& b, const KeyPatterns& patterns);

}  // namespace cairn::core::internal
