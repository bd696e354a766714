#pragma once
/// Finds the owners of tensors: the tensors that hold their bytes. A tensor that is not an alias
/// owns its bytes itself.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/step/contents.h"
#include "core/step/internal/lookup.h"

namespace cairn::core::internal {

/// Returns the owner of `alias`. Requires alias.alias_of. kDataLoss: there is no such tensor, or
/// CheckAlias fails.
Result<TensorInfo> FindOwner(const StepView& view, const TensorInfo& alias);

/// Checks that `owner` holds all bytes that `alias` may refer to. kDataLoss: the alias refers to
/// bytes outside the owner's payload, or the owner is an alias itself.
Result<void> CheckAlias(const TensorInfo& alias, const TensorInfo& owner);

/// Returns the records of `fqns`, which may repeat and may be in any order, in key order without
/// duplicates. Errors: see FindTensors.
Result<std::vector<TensorInfo>> FindNamed(const StepView& view, std::vector<std::string> fqns);

/// Returns the owners of `tensors` in key order without duplicates; the caller calls CheckAlias.
/// Requires that `tensors` are in key order. kDataLoss: an owner is missing.
Result<std::vector<TensorInfo>> FindOwners(const StepView& view,
                                           std::span<const TensorInfo> tensors);

/// Returns one of `tensors` by its FQN, or null. Requires that `tensors` are in key order.
const TensorInfo* FindByName(std::span<const TensorInfo> tensors, std::string_view fqn);

/// Returns one of `tensors` by its FQN. Requires that it is one of them, and that they are in key
/// order.
const TensorInfo& ByName(std::span<const TensorInfo> tensors, std::string_view fqn);

}  // namespace cairn::core::internal
