#include "core/step/internal/owners.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "core/step/contents.h"

namespace cairn::core::internal {
namespace {

void SortUnique(std::vector<std::string>& names) {
  // They often are in order, and this is much cheaper than sorting them again.
  if (!std::ranges::is_sorted(names)) std::ranges::sort(names);
  names.erase(std::ranges::unique(names).begin(), names.end());
}

}  // namespace

Result<void> CheckAlias(const TensorInfo& alias, const TensorInfo& owner) {
  bool fits = !owner.alias_of.has_value();
  uint64_t last = 0;
  for (size_t d = 0; d < alias.shape.size() && alias.nbytes > 0; ++d) {
    uint64_t reach = 0;
    fits = fits && !__builtin_mul_overflow(alias.shape[d] - 1, alias.alias_strides[d], &reach) &&
           !__builtin_add_overflow(last, reach, &last);
  }
  uint64_t end = 0;
  fits = fits && !__builtin_add_overflow(last, uint64_t{1}, &last) &&
         !__builtin_mul_overflow(last, schema::ElementBytes(alias.dtype), &last) &&
         !__builtin_add_overflow(last, alias.alias_offset_bytes, &end) && end <= owner.nbytes;
  if (fits || alias.nbytes == 0) return {};
  return Fail(Error{
      .code = ErrorCode::kDataLoss,
      .message = fmt::format("TensorRecord is damaged: it refers to bytes beyond the {} bytes "
                             "of '{}', which it shares",
                             owner.nbytes, owner.fqn),
      .key = alias.fqn});
}

Result<std::vector<TensorInfo>> FindNamed(const StepView& view, std::vector<std::string> fqns) {
  SortUnique(fqns);
  return FindTensors(view, fqns);
}

const TensorInfo* FindByName(std::span<const TensorInfo> tensors, std::string_view fqn) {
  const auto found = std::ranges::lower_bound(tensors, fqn, {}, &TensorInfo::fqn);
  return found != tensors.end() && found->fqn == fqn ? &*found : nullptr;
}

const TensorInfo& ByName(std::span<const TensorInfo> tensors, std::string_view fqn) {
  const TensorInfo* const found = FindByName(tensors, fqn);
  CAIRN_CHECK(found != nullptr);
  return *found;
}

Result<std::vector<TensorInfo>> FindOwners(const StepView& view,
                                           std::span<const TensorInfo> tensors) {
  std::vector<TensorInfo> owners;
  for (const TensorInfo& tensor : tensors) {
    if (!tensor.alias_of) owners.push_back(tensor);
  }
  std::vector<std::string> others;
  for (const TensorInfo& tensor : tensors) {
    if (!tensor.alias_of) continue;
    if (FindByName(owners, *tensor.alias_of) == nullptr) others.push_back(*tensor.alias_of);
  }
  if (others.empty()) return owners;
  auto found = FindNamed(view, std::move(others));
  if (!found) {
    Error error = std::move(found).error();
    if (error.code == ErrorCode::kNotFound) {
      error.code = ErrorCode::kDataLoss;
      error.hint = Hint::kNone;
      error.message = "the step lacks this tensor, whose bytes others share";
    }
    return Fail(std::move(error));
  }
  std::ranges::move(*found, std::back_inserter(owners));
  std::ranges::sort(owners, {}, &TensorInfo::fqn);
  return owners;
}

Result<TensorInfo> FindOwner(const StepView& view, const TensorInfo& alias) {
  CAIRN_CHECK(alias.alias_of.has_value());
  CAIRN_TRY_ASSIGN(std::vector<TensorInfo> owners, FindOwners(view, {&alias, 1}));
  CAIRN_TRY(CheckAlias(alias, owners.front()));
  return std::move(owners.front());
}

}  // namespace cairn::core::internal
