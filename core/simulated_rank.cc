// Planning and handing in as one rank of many.

#include "core/simulated_rank.h"

#include "core/save/internal/save.h"

namespace cairn::core {

Result<RankShare> PlanRank(const StateDict& state, const SaveOptions& options, uint32_t rank,
                           uint32_t world_size) {
  CAIRN_TRY_ASSIGN(internal::SavePlan plan,
                   internal::PlanSave(state, options, {.rank = rank, .world_size = world_size}));
  RankShare share{.bytes = plan.own_bytes};
  for (const TensorInfo& tensor : plan.tensors) {
    share.chunks += tensor.chunk_count;
    if (tensor.chunk_count > 0) ++share.tensors;
  }
  return share;
}

Result<void> PrepareRank(kv::Store& joined, uint64_t step, const std::string& attempt,
                        const StateDict& state, const SaveOptions& options, uint32_t rank,
                        uint32_t world_size) {
  const internal::RankInWorld place{.rank = rank, .world_size = world_size};
  CAIRN_TRY_ASSIGN(internal::SavePlan plan, internal::PlanSave(state, options, place));
  internal::WorkerPool pool(1);
  CAIRN_TRY(internal::RunSave(joined, {.step = step, .name = attempt, .wait = false}, plan, place,
                              options, pool));
  return {};
}

}  // namespace cairn::core
