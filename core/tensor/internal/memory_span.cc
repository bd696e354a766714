// Finds overlapping memory: sorts address ranges, then merges neighbors that overlap.

#include "core/tensor/internal/memory_span.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace cairn::core::internal {
namespace {

std::unexpected<Error> Invalid(std::string message) {
  return Fail(ErrorCode::kInvalidArgument, std::move(message));
}

}  // namespace

Result<MemorySpan> ContiguousSpan(DType dtype, std::span<const uint64_t> shape,
                                  const std::byte* data) {
  CAIRN_TRY_ASSIGN(const uint64_t nbytes, TensorBytes(dtype, shape));
  if (nbytes == 0) return MemorySpan{};
  if (data == nullptr) {
    return Invalid(fmt::format("{} bytes at a null pointer; materialise the tensor first", nbytes));
  }
  const auto begin = reinterpret_cast<uintptr_t>(data);
  uintptr_t end = 0;
  if (__builtin_add_overflow(begin, nbytes, &end)) {
    return Invalid("the tensor leads out of the address space");
  }
  return MemorySpan{.begin = begin, .end = end};
}

Result<MemorySpan> SpanOf(const TensorView& view) {
  CAIRN_TRY(CheckStrides(view.shape, view.strides));
  CAIRN_TRY_ASSIGN(const MemorySpan contiguous, ContiguousSpan(view.dtype, view.shape, view.data));
  if (view.strides.empty() || contiguous.begin == contiguous.end) return contiguous;
  const auto bytes = SpanBytes(schema::ElementBytes(view.dtype), view.shape, view.strides);
  uintptr_t end = 0;
  if (!bytes || __builtin_add_overflow(contiguous.begin, *bytes, &end)) {
    return Invalid("strides lead out of the address space");
  }
  return MemorySpan{.begin = contiguous.begin, .end = end};
}

std::vector<std::vector<size_t>> OverlapGroups(std::span<const MemorySpan> spans) {
  std::vector<size_t> order;
  for (size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].begin < spans[i].end) order.push_back(i);
  }
  std::ranges::stable_sort(order, {}, [&](size_t i) { return spans[i].begin; });
  std::vector<std::vector<size_t>> groups;
  uintptr_t end = 0;
  for (const size_t i : order) {
    if (groups.empty() || spans[i].begin >= end) {
      groups.emplace_back();
      end = spans[i].end;
    }
    groups.back().push_back(i);
    end = std::max(end, spans[i].end);
  }
  return groups;
}

}  // namespace cairn::core::internal
