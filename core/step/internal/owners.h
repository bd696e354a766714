#pragma once
/// Tensors and those that hold their bytes: themselves, or what they are aliases of.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/step/contents.h"
#include "core/step/internal/lookup.h"

namespace cairn::core::internal {

/// The tensor that holds the bytes of `alias`, checked to hold all that the alias may touch.
/// Requires alias.alias_of. kDataLoss otherwise.
Result<TensorInfo> FindOwner(const StepView& view, const TensorInfo& alias);

/// kDataLoss: the alias leads out of its owner's payload, or the owner is an alias itself.
Result<void> CheckAlias(const TensorInfo& alias, const TensorInfo& owner);

/// Records of `fqns`, which may come in any order and repeat, in key order and once each.
Result<std::vector<TensorInfo>> FindNamed(const StepView& view, std::vector<std::string> fqns);

/// Those that hold the bytes of `tensors` (key order), in key order and once each. kDataLoss: one
/// is missing. CheckAlias is left to the caller.
Result<std::vector<TensorInfo>> FindOwners(const StepView& view,
                                           std::span<const TensorInfo> tensors);

/// One of `tensors` (key order), or null.
const TensorInfo* FindByName(std::span<const TensorInfo> tensors, std::string_view fqn);

/// The same. Requires that it is among them.
const TensorInfo& ByName(std::span<const TensorInfo> tensors, std::string_view fqn);

}  // namespace cairn::core::internal
