#include "core/save/internal/last_save.h"

#include <algorithm>
#include <bit>
#include <complex>
#include <cstdint>
#include <utility>
#include <variant>

#include "core/save/internal/device_save.h"
#include "core/save/internal/save_planner.h"

namespace cairn::core::internal {
namespace {

bool HasSameBits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

// Not operator==, for which 0.0 and -0.0 are equal.
bool IsSameValue(const Value& a, const Value& b) {
  if (const auto* number = std::get_if<double>(&a); number && std::holds_alternative<double>(b)) {
    return HasSameBits(*number, std::get<double>(b));
  }
  using Complex = std::complex<double>;
  if (const auto* number = std::get_if<Complex>(&a); number && std::holds_alternative<Complex>(b)) {
    const Complex& other = std::get<Complex>(b);
    return HasSameBits(number->real(), other.real()) && HasSameBits(number->imag(), other.imag());
  }
  return a == b;
}

bool IsSameView(const TensorView& a, const TensorView& b) {
  return a.data == b.data && a.dtype == b.dtype && a.device == b.device && a.shape == b.shape &&
         a.strides == b.strides;
}

bool IsSameState(const StateDict& a, const StateDict& b) {
  return a.shardings.empty() && b.shardings.empty() && a.slot == b.slot &&
         std::ranges::equal(a.tensors, b.tensors, IsSameView) && a.tree == b.tree &&
         std::ranges::equal(a.values, b.values, IsSameValue);
}

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
  if (is_comparable && IsSameState(state, state_)) {
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
