#pragma once
/// Loads boxes of tensors of one step.

#include "core/base/progress.h"
#include "core/load/load_options.h"
#include "core/step/internal/lookup.h"

namespace cairn::core::internal {

/// See CheckpointStore::Load. All requests are checked before any target is written.
Result<LoadReport> RunLoad(const StepView& view, std::span<const LoadRequest> requests,
                           const Progress& progress, std::span<const DeviceStream> streams = {},
                           std::span<const TensorInfo> known = {});

}  // namespace cairn::core::internal
