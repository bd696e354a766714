#include "core/save/internal/last_save.h"

#include <algorithm>
#include <utility>

#include "core/save/internal/device_save.h"
#include "core/save/internal/same_state.h"
#include "core/save/internal/save_planner.h"

namespace cairn::core::internal {
namespace {

bool IsSameTensor(const TensorInfo& a, const TensorInfo& b) {
  return a.fqn == b.fqn && a.dtype == b.dtype && a.shape == b.shape && a.nbytes == b.nbytes &&
         a.chunk_count == b.chunk_count && a.alias_of == b.alias_of &&
         a.alias_offset_bytes == b.alias_offset_bytes && a.alias_strides == b.alias_strides &&
         a.hidden == b.hidden;
}

// Requires grids of the same chunk size.
bool IsSameShard(const PlannedShard& a, const PlannedShard& b) {
  return a.tensor == b.tensor && a.first_chunk == b.first_chunk && a.end_chunk == b.end_chunk &&
         a.grid.box() == b.grid.box();
}

bool HasSameRecords(const SavePlan& a, const SavePlan& b) {
  return a.structure == b.structure && a.values == b.values &&
         std::ranges::equal(a.tensors, b.tensors, IsSameTensor) &&
         std::ranges::equal(a.shards, b.shards, IsSameShard);
}

}  // namespace

Result<SavePlan*> LastSave::Plan(const StateDict& state, const SaveOptions& options,
                                 const RankInWorld& self) {
  const bool is_alone = self.world_size == 1 && options.replicated_mesh == nullptr;
  const bool is_comparable = is_alone && is_remembered_ && chunks_.step.generation != 0 &&
                             chunks_.chunk_bytes == options.chunk_bytes;
  if (is_comparable && HasSameTensors(state, state_) && HasSameValues(state, state_)) {
    has_same_records_ = true;
    return &plan_;
  }
  CAIRN_TRY_ASSIGN(SavePlan plan, PlanSave(state, options, self));
  has_same_records_ = is_comparable && HasSameRecords(plan, plan_);
  plan_ = std::move(plan);
  is_remembered_ = is_alone && plan_.shards.size() <= kMaxShards && !DeviceSave::IsNeeded(plan_);
  state_ = is_remembered_ ? state : StateDict();
  return &plan_;
}

}  // namespace cairn::core::internal
