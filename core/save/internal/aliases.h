#pragma once
/// Determines which tensors of a state share memory, and which of them owns the bytes.

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/save/internal/save_plan.h"
#include "core/step/contents.h"
#include "core/tensor/internal/memory_span.h"
#include "core/tensor/tensor.h"

namespace cairn::core::internal {

struct NamedTensor {
  std::string fqn;
  TensorView view;
};

/// A tensor as it will be stored: its record, and the memory to write unless it is an alias.
struct PlannedTensor {
  TensorInfo info;    // chunk_count is not set yet
  TensorView source;  // empty for aliases
};

/// Plans groups of overlapping tensors, whose members are given in FQN order.
class AliasPlanner {
 public:
  AliasPlanner(std::span<const NamedTensor> tensors, std::span<const MemorySpan> spans,
               std::span<const NamedRecord> values, std::vector<PlannedTensor>* planned)
      : tensors_(tensors), spans_(spans), values_(values), planned_(planned) {}

  void Plan(const std::vector<size_t>& group) {
    MemorySpan all = spans_[group.front()];
    for (const size_t i : group) {
      all.begin = std::min(all.begin, spans_[i].begin);
      all.end = std::max(all.end, spans_[i].end);
    }
    const auto owner = std::ranges::find_if(group, [&](size_t i) {
      return spans_[i].begin == all.begin && spans_[i].end == all.end &&
             IsContiguous(tensors_[i].view.shape, tensors_[i].view.strides);
    });
    if (group.size() == 1 && (owner != group.end() || !RepeatsMuch(group.front()))) {
      // A tensor with gaps or repeats in memory is gathered in row-major order.
      AddOwner(tensors_[group.front()]);
      return;
    }
    std::string owner_fqn;
    if (owner != group.end()) {
      owner_fqn = tensors_[*owner].fqn;
      AddOwner(tensors_[*owner]);
    } else {
      owner_fqn = AddHidden(tensors_[group.front()], all);
    }
    for (const size_t i : group) {
      if (owner == group.end() || i != *owner) AddAlias(i, owner_fqn, all.begin);
    }
  }

  void AddOwner(const NamedTensor& tensor) {
    planned_->push_back({.info = Describe(tensor), .source = tensor.view});
  }

 private:
  bool RepeatsMuch(size_t i) const {
    const TensorView& view = tensors_[i].view;
    const uint64_t memory_bytes = static_cast<uint64_t>(spans_[i].end - spans_[i].begin);
    return *TensorBytes(view.dtype, view.shape) > memory_bytes + kMaxRepeatedBytes;
  }
  static TensorInfo Describe(const NamedTensor& tensor) {
    const auto nbytes = TensorBytes(tensor.view.dtype, tensor.view.shape);
    CAIRN_CHECK(nbytes.has_value());  // SpanOf accepted the tensor
    return TensorInfo{.fqn = tensor.fqn,
                      .dtype = tensor.view.dtype,
                      .shape = tensor.view.shape,
                      .nbytes = *nbytes};
  }

  std::string AddHidden(const NamedTensor& first, const MemorySpan& all) {
    if (names_.empty()) {
      for (const NamedTensor& tensor : tensors_) names_.insert(tensor.fqn);
      for (const auto& [value_fqn, record] : values_) names_.insert(value_fqn);
    }
    std::string fqn = first.fqn + ".__storage__";
    while (!names_.insert(fqn).second) fqn += "_";
    const TensorView bytes{.dtype = DType::kUInt8,
                           .shape = {all.end - all.begin},
                           .data = reinterpret_cast<const std::byte*>(all.begin),
                           .device = first.view.device};
    AddOwner({.fqn = fqn, .view = bytes});
    planned_->back().info.hidden = true;
    return fqn;
  }

  void AddAlias(size_t i, const std::string& owner_fqn, uintptr_t owner_begin) {
    TensorInfo info = Describe(tensors_[i]);
    info.alias_of = owner_fqn;
    info.alias_offset_bytes = spans_[i].begin - owner_begin;
    const TensorView& view = tensors_[i].view;
    info.alias_strides = view.strides.empty() ? RowMajorStrides(view.shape) : view.strides;
    planned_->push_back({.info = std::move(info), .source = {}});
  }

  std::span<const NamedTensor> tensors_;
  std::span<const MemorySpan> spans_;
  std::span<const NamedRecord> values_;
  std::vector<PlannedTensor>* planned_;
  std::unordered_set<std::string> names_;  // names that are taken; empty until a new name is needed
};

/// Decides owners and aliases, and returns all tensors in any order. In a group of tensors that
/// overlap in memory, the first tensor by FQN that is row-major and covers all memory of the group
/// owns the bytes. If there is none, a hidden uint8 tensor "<first FQN>.__storage__" owns them. Its
/// name is not that of a value, either; not even of a short one, as it may be long on other ranks.
/// kInvalidArgument: a tensor without memory, or of impossible size; names the key.
inline Result<std::vector<PlannedTensor>> PlanTensors(std::span<const NamedTensor> tensors,
                                                      std::span<const NamedRecord> values) {
  std::vector<MemorySpan> spans;
  spans.reserve(tensors.size());
  for (const NamedTensor& tensor : tensors) {
    auto span = SpanOf(tensor.view);
    if (!span) return Fail(std::move(span).error().WithKey(tensor.fqn));
    spans.push_back(*span);
  }
  std::vector<PlannedTensor> planned;
  planned.reserve(tensors.size());
  AliasPlanner planner(tensors, spans, values, &planned);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (spans[i].begin == spans[i].end) planner.AddOwner(tensors[i]);
  }
  for (std::vector<size_t>& group : OverlapGroups(spans)) {
    std::ranges::sort(group, {}, [&](size_t i) -> const std::string& { return tensors[i].fqn; });
    planner.Plan(group);
  }
  return planned;
}

}  // namespace cairn::core::internal
