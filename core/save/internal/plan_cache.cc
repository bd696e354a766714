#include "core/save/internal/plan_cache.h"

#include <utility>
#include <vector>

#include "core/save/internal/same_state.h"
#include "core/save/internal/save_planner.h"
#include "core/save/internal/stated_unchanged.h"

namespace cairn::core::internal {

Result<SavePlan> PlanCache::Plan(const StateDict& state, const SaveOptions& options,
                                 const RankInWorld& self, uint64_t step) {
  const bool is_alone = self.world_size == 1 && options.replicated_mesh == nullptr;
  const bool is_same = is_alone && last_ && last_->unchanged == options.unchanged &&
                       last_->chunk_bytes == options.chunk_bytes &&
                       HasSameTensors(state, last_->state);
  if (is_same) {
    CAIRN_TRY(CheckSaveOptions(options));
    if (!HasSameValues(state, last_->state)) CAIRN_TRY(UpdateValues(state));
    SavePlan plan = last_->plan;
    ChooseComparedChunk(plan, step);
    return plan;
  }
  last_.reset();
  CAIRN_TRY_ASSIGN(SavePlan plan, PlanSave(state, options, self));
  CAIRN_TRY(MarkStatedUnchanged(plan, options, step));
  // Without such a statement, the save reads all tensors, which takes much longer than the plan.
  if (!options.unchanged.empty() && is_alone && state.shardings.empty() &&
      plan.shards.size() <= kMaxShards) {
    last_.emplace(Remembered{.state = state,
                             .unchanged = options.unchanged,
                             .chunk_bytes = options.chunk_bytes,
                             .plan = plan});
  }
  return plan;
}

Result<void> PlanCache::UpdateValues(const StateDict& state) {
  CAIRN_TRY_ASSIGN(const std::vector<Leaf> leaves, state.Leaves());
  CAIRN_TRY_ASSIGN(last_->plan.values, EncodeValues(state, leaves));
  last_->state.values = state.values;
  return {};
}

}  // namespace cairn::core::internal
