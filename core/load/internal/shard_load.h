#pragma once
/// Loads for any mesh: each rank gets its part, which it reads itself, or which one of the ranks
/// that need it reads and sends to the others.

#include <functional>
#include <span>

#include "core/load/load_options.h"
#include "core/step/internal/lookup.h"

namespace cairn::core::internal {

/// Reads everything that `rank` needs. Errors: those of CheckpointStore::LoadShards.
Result<LoadReport> LoadOwnShards(const StepView& view, std::span<const ShardTarget> targets,
                                 uint32_t rank, const ShardLoadOptions& options);

/// Reads each box once for all ranks that need it. Collective. Calls `find_view` once; its errors
/// are treated as all other errors of this rank: if one rank fails, all ranks get an error. Errors:
/// those of CheckpointStore::LoadShards.
Result<LoadReport> LoadShardsOnce(const std::function<Result<StepView>()>& find_view,
                                  std::span<const ShardTarget> targets, Communicator& communicator,
                                  const ShardLoadOptions& options);

}  // namespace cairn::core::internal
