#pragma once
/// Loads for any mesh: each rank reads its part itself, or one of the ranks that need a part reads
/// it and sends it to the others.

#include <span>

#include "core/load/load_options.h"
#include "core/step/internal/lookup.h"

namespace cairn::core::internal {

/// Reads everything that `rank` needs. Errors: see CheckpointStore::LoadShards.
Result<LoadReport> LoadOwnShards(const StepView& view, std::span<const ShardTarget> targets,
                                 uint32_t rank, const ShardLoadOptions& options);

/// Reads each box once for all ranks that need it. Collective. If one rank fails, which may not
/// find the step any more, all ranks get an error. Errors: see CheckpointStore::LoadShards.
Result<LoadReport> LoadShardsOnce(const kv::Store& store, const kv::StepInfo& step,
                                  std::span<const ShardTarget> targets, Communicator& communicator,
                                  const ShardLoadOptions& options);

}  // namespace cairn::core::internal
