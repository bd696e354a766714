#pragma once
/// Combines the statistics of chunks.

#include <optional>
#include <span>
#include <vector>

#include "core/inspect/stored_statistics.h"
#include "core/step/contents.h"
#include "core/step/internal/lookup.h"
#include "kv/base/error.h"

namespace cairn::core::internal {

/// See CheckpointStore::FindStatistics.
Result<std::vector<std::optional<StoredStatistics>>> FindStatistics(
    const StepView& view, std::span<const TensorInfo> tensors);

}  // namespace cairn::core::internal
