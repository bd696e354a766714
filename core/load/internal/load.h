#pragma once
/// The loads: boxes of tensors of one step, shards, mapped tensors, and updates in place. A file of
/// this folder with the same name implements each.

#include <span>
#include <string>

#include "core/base/progress.h"
#include "core/load/load_options.h"
#include "core/load/map.h"
#include "core/step/internal/lookup.h"

namespace cairn::core::internal {

/// See CheckpointStore::Load. All requests are checked before any target is written.
Result<LoadReport> RunLoad(const StepView& view, std::span<const LoadRequest> requests,
                           const Progress& progress, std::span<const DeviceStream> streams = {},
                           std::span<const TensorInfo> known = {});

/// See CheckpointStore::LoadValues.
Result<void> RunLoadValues(const StepView& view, std::span<ValueInfo> values,
                           const Progress& progress);

/// Reads everything that `rank` needs. Errors: see CheckpointStore::LoadShards.
Result<LoadReport> LoadOwnShards(const StepView& view, std::span<const ShardTarget> targets,
                                 uint32_t rank, const ShardLoadOptions& options);

/// Reads each box once for all ranks that need it. Collective. If one rank fails, which may not
/// find the step any more, all ranks get an error. Errors: see CheckpointStore::LoadShards.
Result<LoadReport> LoadShardsOnce(const kv::Store& store, const kv::StepInfo& step,
                                  std::span<const ShardTarget> targets, Communicator& communicator,
                                  const ShardLoadOptions& options);

/// See CheckpointStore::MapUnchecked.
Result<UncheckedMap> RunMap(StepView view, std::span<const std::string> fqns);

/// See CheckpointStore::Update. `base` and `view` are steps of the same store. `is_compared` must
/// be false in the first call; it is set when the memory was found to contain the base. If a call
/// returns kNotFound because segments were removed, another one with newer views and the same
/// `is_compared` continues: it accepts memory with bytes of both steps.
Result<UpdateReport> RunUpdate(const StepView& base, const StepView& view,
                               std::span<const LoadRequest> requests, const Progress& progress,
                               std::span<const DeviceStream> streams, bool& is_compared);

}  // namespace cairn::core::internal
