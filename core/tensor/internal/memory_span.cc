// Finds overlapping memory: sorts address ranges, then merges neighbors that overlap.

#include "core/tensor/internal/memory_span.h"

#include <fmt/format.h>

#include <algorithm>
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

Result<MemorySpan> SpanOf(const TensorRef& view) {
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

OverlapGroups::OverlapGroups(std::span<const MemorySpan> spans) {
  order_.reserve(spans.size());
  for (size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].begin < spans[i].end) order_.push_back(i);
  }
  const auto begin_of = [&](size_t i) { return spans[i].begin; };
  if (!std::ranges::is_sorted(order_, {}, begin_of)) std::ranges::stable_sort(order_, {}, begin_of);
  groups_.reserve(order_.size());
  for (size_t first = 0; first < order_.size();) {
    uintptr_t end = spans[order_[first]].end;
    size_t next = first + 1;
    for (; next < order_.size() && begin_of(order_[next]) < end; ++next) {
      end = std::max(end, spans[order_[next]].end);
    }
    groups_.push_back(std::span(order_).subspan(first, next - first));
    first = next;
  }
}

}  // namespace cairn::core::internal
