#pragma once
/// Filling targets from one step, and mapping tensors of it.

#include "core/checkpoint_store.h"
#include "core/step/internal/lookup.h"

namespace cairn::core::internal {

/// See CheckpointStore::Load. All requests are checked before any target is touched.
Result<LoadReport> RunLoad(const StepView& view, std::span<const LoadRequest> requests,
                           const Progress& progress, std::span<const DeviceStream> streams = {});

/// See CheckpointStore::Map.
Result<std::vector<std::optional<MappedTensor>>> RunMap(const StepView& view,
                                                        std::span<const std::string> fqns,
                                                        bool verify, const Progress& progress);

}  // namespace cairn::core::internal
