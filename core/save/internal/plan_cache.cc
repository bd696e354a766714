#include "core/save/internal/plan_cache.h"

#include <algorithm>
#include <bit>
#include <complex>
#include <iterator>
#include <utility>
#include <variant>

#include "core/save/internal/save_planner.h"
#include "core/state_dict/internal/leaves.h"

namespace cairn::core::internal {
namespace {

bool HasSameBits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

// The value as it is remembered: a long one without its bytes, which are compared as chunks.
// Requires a value that was planned.
Value ToRemember(const Value& value) { return IsLong(value) ? Value(*WithoutBytes(value)) : value; }

// True if both are short, or if both are long, of one kind and equally long.
bool HasSameForm(const Value& value, const Value& remembered) {
  const auto* const chunked = std::get_if<ChunkedValue>(&remembered);
  if (!IsLong(value)) return chunked == nullptr && !std::holds_alternative<ChunkedValue>(value);
  const auto form = WithoutBytes(value);
  return chunked != nullptr && form && *form == *chunked;
}

// Not operator==, for which 0.0 and -0.0 are equal. Requires HasSameForm.
bool IsSameValue(const Value& a, const Value& b) {
  if (std::holds_alternative<ChunkedValue>(b)) return true;
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

// True if both are of the same memory.
bool IsSameView(const TensorView& a, const TensorRef& b) {
  return a.data == b.data && a.dtype == b.dtype && a.device == b.device &&
         std::ranges::equal(a.shape, b.shape) && std::ranges::equal(a.strides, b.strides);
}

bool IsSameAlias(const TensorAlias* a, const TensorAlias* b) {
  if (a == nullptr || b == nullptr) return a == b;
  return a->owner == b->owner && a->offset_bytes == b->offset_bytes &&
         std::ranges::equal(a->strides, b->strides);
}

bool IsSameTensor(const TensorEntry& a, const TensorEntry& b) {
  return a.fqn == b.fqn && std::ranges::equal(a.shape, b.shape) && a.nbytes == b.nbytes &&
         a.chunk_count == b.chunk_count && IsSameAlias(a.alias, b.alias) && a.dtype == b.dtype &&
         a.hidden == b.hidden;
}

// Requires chunks of the same size.
bool IsSameShard(const PlannedShard& a, const PlannedShard& b) {
  return a.tensor == b.tensor && a.first_chunk == b.first_chunk && a.end_chunk == b.end_chunk &&
         std::ranges::equal(a.box.numbers, b.box.numbers);
}

bool HasSameRecords(const SavePlan& a, const SavePlan& b) {
  return a.layout->structure == b.layout->structure && a.values == b.values &&
         std::ranges::equal(a.tensors(), b.tensors(), IsSameTensor) &&
         std::ranges::equal(a.shards(), b.shards(), IsSameShard);
}

bool IsAlone(const SaveOptions& options, const RankInWorld& self) {
  return self.world_size == 1 && options.replicated_mesh == nullptr;
}

}  // namespace

Result<SavePlan*> PlanCache::Plan(const StateDict& state, const SaveOptions& options,
                                  const RankInWorld& self, uint64_t step) {
  const bool is_same = is_remembered_ && IsAlone(options, self) &&
                       chunk_bytes_ == options.chunk_bytes && HasSamePlan(state);
  Result<void> planned = is_same ? CheckSaveOptions(options) : Replan(state, options, self);
  if (planned && is_same) planned = UpdateValues(state);
  if (planned) planned = Mark(options, step);
  if (planned) return &plan_;
  is_remembered_ = false;
  return std::unexpected(std::move(planned).error());
}

Result<void> PlanCache::Replan(const StateDict& state, const SaveOptions& options,
                               const RankInWorld& self) {
  const bool is_alone = IsAlone(options, self);
  const bool is_comparable = is_remembered_ && is_alone && chunk_bytes_ == options.chunk_bytes;
  CAIRN_TRY_ASSIGN(SavePlan plan, PlanSave(state, options, self));
  has_same_records_ = is_comparable && HasSameRecords(plan, plan_);
  plan_ = std::move(plan);
  is_remembered_ = is_alone && state.shardings.empty() && plan_.shards().size() <= kMaxShards;
  slot_ = is_remembered_ ? state.slot : std::vector<uint32_t>();
  tensor_count_ = state.tensors.size();
  RememberValues(state);
  chunk_bytes_ = options.chunk_bytes;
  unchanged_.clear();
  return {};
}

// The views of the plan begin with the tensors of its state.
bool PlanCache::HasSamePlan(const StateDict& state) const {
  return state.shardings.empty() && state.slot == slot_ && state.tensors.size() == tensor_count_ &&
         std::equal(state.tensors.begin(), state.tensors.end(), plan_.layout->views.begin(),
                    IsSameView) &&
         std::ranges::equal(state.values, values_, HasSameForm) &&
         IsRecordOf(plan_.layout->structure, state.tree);
}

void PlanCache::RememberValues(const StateDict& state) {
  values_.clear();
  if (!is_remembered_) return;
  std::ranges::transform(state.values, std::back_inserter(values_), ToRemember);
}

Result<void> PlanCache::UpdateValues(const StateDict& state) {
  for (size_t i = 0; i < plan_.sources.size(); ++i) {
    const auto slot = plan_.shards()[i].value_slot;
    if (slot) plan_.sources[i].data = BytesOf(state.values[*slot]).data();
  }
  has_same_records_ = std::ranges::equal(state.values, values_, IsSameValue);
  if (has_same_records_) return {};
  Arena arena;
  CAIRN_TRY_ASSIGN(const std::vector<LeafName> leaves, LeafNames(state, arena));
  CAIRN_TRY_ASSIGN(plan_.values, EncodeValues(state, leaves, /*long_as_chunks=*/true));
  RememberValues(state);
  return {};
}

Result<void> PlanCache::Mark(const SaveOptions& options, uint64_t step) {
  if (unchanged_ == options.unchanged && !plan_.has_lost_marks) {
    ChooseComparedChunk(plan_, step);
    return {};
  }
  CAIRN_TRY(MarkStatedUnchanged(plan_, options, step));
  unchanged_ = options.unchanged;
  return {};
}

SavePlan PlanCache::Take() { return is_remembered_ ? plan_ : std::move(plan_); }

}  // namespace cairn::core::internal
