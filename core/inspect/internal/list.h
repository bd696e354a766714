#pragma once
/// Lists the keys of a step, and finds the data that front ends have stored with it.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/state_dict/key_pattern.h"
#include "core/step/contents.h"
#include "core/step/internal/lookup.h"

namespace cairn::core::internal {

/// Returns the tensors and values of a step that the patterns select, without the tree.
Result<Contents> ListLeaves(const StepView& view, const KeyPatterns& patterns);

/// See CheckpointStore::ForEachKey.
Result<void> RunForEachKey(const StepView& view, const KeyPatterns& patterns,
                           const TensorVisitor& on_tensor, const ValueVisitor& on_value);

/// Returns the tensors and values in `fqns` that the step has and the patterns select. Hidden
/// tensors are only returned as owners. `fqns` are sorted. Cost: one lookup per tensor, two per
/// value.
Result<Contents> FindLeaves(const StepView& view, const KeyPatterns& patterns,
                            std::span<const std::string> fqns);

/// See CheckpointStore::List. `trees` belongs to the store.
Result<Contents> RunList(const StepView& view, const KeyPatterns& patterns, TreeCache& trees);

/// See CheckpointStore::FindExtension.
Result<std::optional<std::vector<std::byte>>> FindExtension(const StepView& view,
                                                            std::string_view name);

}  // namespace cairn::core::internal
