#pragma once
/// Determines which tensors of a state share memory, and which of them owns the bytes.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "core/save/internal/save_plan.h"
#include "core/step/contents.h"
#include "core/tensor/internal/memory_span.h"
#include "core/tensor/internal/tensor_ref.h"
#include "core/tensor/sharding.h"
#include "core/tensor/tensor.h"

namespace cairn::core::internal {

/// A leaf, memory that aliases share, or the bytes of a long value. Borrows the state and the
/// layout of the plan.
struct PlannedTensor {
  std::string_view fqn;
  const TensorRef* view = nullptr;
  const Sharding* sharding = nullptr;  // null: replicated
  const TensorAlias* alias = nullptr;  // null: it has bytes of its own
  std::optional<uint32_t> value_slot;  // index into StateDict::values, if it is a long value
  bool is_hidden = false;
};

/// Decides owners and aliases of replicated tensors. In a group of tensors that overlap in memory,
/// the first tensor by FQN that is row-major and covers all memory of the group owns the bytes. If
/// there is none, a hidden uint8 tensor "<first FQN>.__storage__" owns them. Its name is not that
/// of a value, either; not even of a short one, as it may be long on other ranks. Threads: one.
class AliasPlanner {
 public:
  /// Requires tensors in key order.
  AliasPlanner(std::vector<PlannedTensor>& tensors, std::span<const NamedRecord> values,
               PlanLayout& layout)
      : tensors_(tensors), values_(values), layout_(layout) {}

  /// Sets the aliases, and appends the hidden tensors. Call once. kInvalidArgument: a tensor
  /// without memory, or of impossible size; names the key.
  Result<void> Plan() {
    spans_.resize(tensors_.size());
    for (size_t i = 0; i < spans_.size(); ++i) {
      if (tensors_[i].sharding != nullptr) continue;
      auto span = SpanOf(*tensors_[i].view);
      if (!span) return Fail(std::move(span).error().WithKey(tensors_[i].fqn));
      spans_[i] = *span;
    }
    for (const std::span<size_t> group : OverlapGroups(spans_)) {
      std::ranges::sort(group);  // by FQN
      PlanGroup(group);
    }
    return {};
  }

 private:
  void PlanGroup(std::span<const size_t> group) {
    MemorySpan all = spans_[group.front()];
    for (const size_t i : group) {
      all.begin = std::min(all.begin, spans_[i].begin);
      all.end = std::max(all.end, spans_[i].end);
    }
    const auto owner = std::ranges::find_if(group, [&](size_t i) {
      return spans_[i].begin == all.begin && spans_[i].end == all.end &&
             tensors_[i].view->is_contiguous();
    });
    // A tensor with gaps or repeats in memory is gathered in row-major order.
    if (group.size() == 1 && (owner != group.end() || !RepeatsMuch(group.front()))) return;
    const std::string_view owner_fqn =
        owner != group.end() ? tensors_[*owner].fqn : AddHidden(group.front(), all);
    for (const size_t i : group) {
      if (owner == group.end() || i != *owner) AddAlias(i, owner_fqn, all.begin);
    }
  }

  bool RepeatsMuch(size_t i) const {
    const TensorRef& view = *tensors_[i].view;
    const uint64_t memory_bytes = static_cast<uint64_t>(spans_[i].end - spans_[i].begin);
    return *TensorBytes(view.dtype, view.shape) > memory_bytes + kMaxRepeatedBytes;
  }

  std::string_view AddHidden(size_t first, const MemorySpan& all) {
    if (names_.empty()) {
      for (const PlannedTensor& tensor : tensors_) names_.emplace(tensor.fqn);
      for (const auto& [value_fqn, record] : values_) names_.insert(value_fqn);
    }
    std::string fqn = std::string(tensors_[first].fqn) + ".__storage__";
    while (!names_.insert(fqn).second) fqn += "_";
    const TensorView bytes{.dtype = DType::kUInt8,
                           .shape = {all.end - all.begin},
                           .strides = {},
                           .data = reinterpret_cast<const std::byte*>(all.begin),
                           .device = tensors_[first].view->device};
    tensors_.push_back({.fqn = layout_.memory.Copy(fqn),
                        .view = layout_.AddView(bytes),
                        .value_slot = {},
                        .is_hidden = true});
    return tensors_.back().fqn;
  }

  void AddAlias(size_t i, std::string_view owner_fqn, uintptr_t owner_begin) {
    const TensorRef& view = *tensors_[i].view;
    std::span<const uint64_t> strides = view.strides;
    if (strides.empty()) strides = layout_.Copy(RowMajorStrides(view.shape));
    tensors_[i].alias = &layout_.aliases.emplace_back(TensorAlias{
        .owner = owner_fqn, .offset_bytes = spans_[i].begin - owner_begin, .strides = strides});
  }

  std::vector<PlannedTensor>& tensors_;
  std::span<const NamedRecord> values_;
  PlanLayout& layout_;
  std::vector<MemorySpan> spans_;          // one per leaf; empty for sharded ones
  std::unordered_set<std::string> names_;  // names that are taken; empty until a new name is needed
};

}  // namespace cairn::core::internal
