// Copies the shards of this rank from a full state that it holds.

#include "core/collectives/distribute_state_dict.h"

#include <set>

#include "core/collectives/internal/shard_plan.h"
#include "core/device/internal/device_queues.h"
#include "core/state_dict/internal/leaves.h"
#include "core/state_dict/internal/state_devices.h"
#include "core/tensor/internal/tensor_stream.h"

namespace cairn::core {

Result<HostState> DistributeStateDict(const StateDict& full, const StateTarget& target,
                                      uint32_t rank, const BroadcastOptions& options) {
  CAIRN_TRY_ASSIGN(const auto described, internal::DescribeFull(full));
  CAIRN_TRY_ASSIGN(const auto leaves, target.state().Leaves());
  CAIRN_TRY_ASSIGN(internal::ShardPlan plan,
                   internal::PlanShards(described, target.state(), leaves, rank, options));
  std::set<int> devices;
  internal::AddDevices(full, devices);
  internal::AddDevices(plan.result.state(), devices);
  CAIRN_TRY_ASSIGN(const auto queues, internal::DeviceQueues::Open(devices, options.streams));
  for (const auto& fill : plan.fills) {
    const TensorView& whole = full.tensors[full.slot[fill.full_leaf]];
    for (const auto& shard : internal::ShardViewsToFill(plan, fill, rank)) {
      CAIRN_TRY(queues.Copy(Narrow(whole, shard.box), shard.target));
    }
  }
  CAIRN_TRY(queues.Await());
  if (options.report != nullptr) *options.report = {};
  return std::move(plan.result);
}

}  // namespace cairn::core
