#include "core/upkeep/simulated_rank.h"

#include <fmt/format.h>

#include <chrono>

#include "core/save/internal/rank_merge.h"
#include "core/save/internal/save.h"
#include "core/save/internal/save_planner.h"

namespace cairn::core {

Result<void> PrepareRank(kv::Store& joined, const SimulatedPart& part, const StateDict& state,
                         const SaveOptions& options) {
  if (part.rank == 0 || part.rank >= part.world_size) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("rank {} of {} has no part that another rank gathers", part.rank,
                            part.world_size));
  }
  const internal::RankInWorld self{.rank = part.rank, .world_size = part.world_size};
  CAIRN_TRY_ASSIGN(internal::SavePlan plan, internal::PlanSave(state, options, self));
  kv::WorkerPool pool(1);
  CAIRN_TRY(
      internal::RunSave(plan, {.store = joined,
                               .attempt = {.step = part.step, .name = part.attempt, .wait = false},
                               .self = self,
                               .options = options,
                               .pool = pool}));
  return {};
}

}  // namespace cairn::core
