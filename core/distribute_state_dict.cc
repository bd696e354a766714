// Cutting this rank's shards from a full state that it has.

#include "core/internal/leaves.h"
#include "core/internal/piece_stream.h"
#include "core/internal/shard_plan.h"
#include "core/state_dict_collectives.h"
#include "core/strided_copy.h"

namespace cairn::core {

Result<HostState> DistributeStateDict(const StateDict& full, const StateTarget& target,
                                      uint32_t rank, const BroadcastOptions& options) {
  CAIRN_TRY_ASSIGN(const auto described, internal::DescribeFull(full));
  CAIRN_TRY_ASSIGN(const auto leaves, FlattenTree(target.state().tree));
  CAIRN_TRY_ASSIGN(internal::ShardPlan plan,
                   internal::PlanShards(described, target.state(), leaves, rank, options));
  for (const auto& fill : plan.fills) {
    const TensorView& whole = full.tensors[full.slot[fill.full_leaf]];
    for (const auto& piece : internal::PiecesToFill(plan, fill, rank)) {
      CopyTensor(internal::NarrowTo(whole, piece.box), piece.target);
    }
  }
  if (options.report != nullptr) *options.report = {};
  return std::move(plan.result);
}

}  // namespace cairn::core
