#pragma once
/// Loads for any mesh: each rank its part, read by itself or once for all that hold it.

#include <functional>
#include <span>

#include "core/load/load_options.h"
#include "core/step/internal/lookup.h"

namespace cairn::core::internal {

/// Reads all that `rank` needs.
Result<LoadReport> LoadOwnShards(const StepView& view, std::span<const ShardTarget> targets,
                                 uint32_t rank, const ShardLoadOptions& options);

/// Collective. `find_view` is called once; an error of it is one of this rank, as any other.
Result<LoadReport> LoadShardsOnce(const std::function<Result<StepView>()>& find_view,
                                  std::span<const ShardTarget> targets, Communicator& communicator,
                                  const ShardLoadOptions& options);

}  // namespace cairn::core::internal
