#pragma once
/// Filling targets from one step, and mapping tensors of it.

#include "core/checkpoint_store.h"
#include "core/internal/lookup.h"

namespace cairn::core::internal {

/// See CheckpointStore::Load. All requests are checked before any target is touched.
Result<LoadReport> RunLoad(const StepView& view, std::span<const LoadRequest> requests,
                           const Progress& progress);

/// See CheckpointStore::Map.
Result<std::optional<MappedTensor>> RunMap(const StepView& view, const std::string& fqn,
                                           bool verify);

/// The tensor that holds the bytes of `alias`, checked to hold all that the alias may touch.
/// Requires alias.alias_of. kDataLoss otherwise.
Result<TensorInfo> FindOwner(const StepView& view, const TensorInfo& alias);

/// kDataLoss: the alias leads out of its owner's payload, or the owner is an alias itself.
Result<void> CheckAlias(const TensorInfo& alias, const TensorInfo& owner);

}  // namespace cairn::core::internal
