#include "core/rewrite/internal/merge_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "core/inspect/internal/list.h"
#include "core/step/internal/lookup.h"
#include "core/step/internal/tensor_records.h"

namespace cairn::core::internal {
namespace {

constexpr size_t kMaxNamed = 5;  // limit of named keys that a step does not have

/// A key, and whether it is a tensor.
using NamedLeaf = std::pair<std::string, bool>;

std::vector<NamedLeaf> LeavesOf(const Contents& contents) {
  std::vector<NamedLeaf> leaves;
  for (const TensorInfo& tensor : contents.tensors) {
    if (!tensor.hidden) leaves.emplace_back(tensor.fqn, true);
  }
  for (const ValueInfo& value : contents.values) leaves.emplace_back(value.fqn, false);
  std::ranges::sort(leaves);
  return leaves;
}

Error Differs(std::string message, const std::string& key, uint64_t step) {
  return {
      .code = ErrorCode::kInvalidArgument, .message = std::move(message), .key = key, .step = step};
}

/// kInvalidArgument: `leaves` has keys that `others` lacks.
Result<void> CheckMissing(const std::vector<NamedLeaf>& leaves, uint64_t step,
                          const std::vector<NamedLeaf>& others, uint64_t other_step) {
  std::vector<NamedLeaf> missing;
  std::ranges::set_difference(leaves, others, std::back_inserter(missing));
  if (missing.empty()) return {};
  std::string names;
  for (size_t i = 0; i < std::min(missing.size(), kMaxNamed); ++i) {
    names += fmt::format("{}{}", i == 0 ? "" : ", ", missing[i].first);
  }
  if (missing.size() > kMaxNamed) {
    names += fmt::format(" and {} more", missing.size() - kMaxNamed);
  }
  return Fail(
      Differs(fmt::format("steps can be merged only if they have the same keys; step {} "
                          "lacks these {} of step {}: {}",
                          other_step, missing.front().second ? "tensors" : "values", step, names),
              missing.front().first, other_step));
}

/// Checks a tensor of the last step against the tensor of another step.
Result<void> CheckTensor(const TensorInfo& last, const TensorInfo* other, uint64_t other_step) {
  // Only hidden tensors may be missing: CheckMissing has compared the others.
  if (other == nullptr) {
    return Fail(Differs("tensors that share memory in the last step do not in this one", last.fqn,
                        other_step));
  }
  if (other->dtype != last.dtype || other->shape != last.shape) {
    return Fail(Differs(fmt::format("the tensor is {} {} in this step, and {} {} in the last one",
                                    schema::DTypeName(other->dtype), FormatNumbers(other->shape),
                                    schema::DTypeName(last.dtype), FormatNumbers(last.shape)),
                        last.fqn, other_step));
  }
  const bool shares_same =
      other->alias_of == last.alias_of && other->alias_offset_bytes == last.alias_offset_bytes &&
      other->alias_strides == last.alias_strides && other->hidden == last.hidden;
  if ((last.alias_of || last.hidden) && !shares_same) {
    return Fail(
        Differs("the tensor shares memory with others in the last step, and not in the "
                "same way in this one",
                last.fqn, other_step));
  }
  return {};
}

Result<void> CheckStep(const Contents& last, const Contents& other) {
  const uint64_t step = last.step.step, other_step = other.step.step;
  const std::vector<NamedLeaf> leaves = LeavesOf(last), others = LeavesOf(other);
  CAIRN_TRY(CheckMissing(leaves, step, others, other_step));
  CAIRN_TRY(CheckMissing(others, other_step, leaves, step));
  for (const TensorInfo& tensor : last.tensors) {
    CAIRN_TRY(CheckTensor(tensor, FindByName(other.tensors, tensor.fqn), other_step));
  }
  return {};
}

/// Decides how the bytes of each owner are computed: all tensors that share them decide together.
Result<std::vector<MeanKind>> DecideKinds(const Contents& contents) {
  const std::vector<TensorInfo>& tensors = contents.tensors;
  std::vector<std::optional<MeanKind>> decided(tensors.size());
  const auto owner_of = [&](size_t i) -> Result<size_t> {
    if (!tensors[i].alias_of) return i;
    const TensorInfo* const owner = FindByName(tensors, *tensors[i].alias_of);
    if (owner != nullptr && !owner->alias_of) return static_cast<size_t>(owner - tensors.data());
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = "the tensor shares the bytes of a tensor that does not exist",
                      .key = tensors[i].fqn,
                      .step = contents.step.step});
  };
  std::vector<size_t> owners(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    CAIRN_TRY_ASSIGN(owners[i], owner_of(i));
    if (tensors[i].hidden) continue;  // bytes of other tensors, with any dtype
    const MeanKind kind = MeanKindOf(tensors[i].dtype);
    std::optional<MeanKind>& common = decided[owners[i]];
    const uint64_t number_bytes = std::max<uint64_t>(NumberBytes(kind), 1);
    const bool is_aligned = tensors[i].alias_offset_bytes % number_bytes == 0 &&
                            tensors[owners[i]].nbytes % number_bytes == 0;
    if (common.value_or(kind) != kind || !is_aligned) {
      return Fail(
          Differs("it shares memory with a tensor whose elements are other numbers; such "
                  "tensors have no mean",
                  tensors[i].fqn, contents.step.step));
    }
    common = kind;
  }
  std::vector<MeanKind> kinds;
  for (const size_t owner : owners) kinds.push_back(decided[owner].value_or(MeanKind::kNone));
  return kinds;
}

}  // namespace

Result<MergePlan> PlanMerge(std::span<const StepView> views) {
  CAIRN_CHECK(views.size() >= 2);
  MergePlan plan;
  CAIRN_TRY_ASSIGN(plan.contents, ListLeaves(views.back(), {}));
  for (const StepView& view : views.first(views.size() - 1)) {
    CAIRN_TRY_ASSIGN(const Contents other, ListLeaves(view, {}));
    CAIRN_TRY(CheckStep(plan.contents, other));
  }
  CAIRN_TRY_ASSIGN(plan.kinds, DecideKinds(plan.contents));
  return plan;
}

Result<std::vector<double>> NormalizeWeights(std::span<const double> weights, size_t count) {
  if (weights.empty()) return std::vector<double>(count, 1.0 / static_cast<double>(count));
  if (weights.size() != count) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{} weights for {} steps; give one weight for each step",
                            weights.size(), count));
  }
  double sum = 0;
  for (const double weight : weights) sum += weight;
  if (!std::isfinite(sum) || sum <= 0) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("the sum of the weights is {}; it must be positive and finite", sum));
  }
  std::vector<double> normalized;
  for (const double weight : weights) normalized.push_back(weight / sum);
  return normalized;
}

}  // namespace cairn::core::internal
