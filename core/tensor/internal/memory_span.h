#pragma once
/// Computes the memory that tensors occupy, and which tensors overlap.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor/tensor.h"
#include "kv/base/error.h"

namespace cairn::core::internal {

/// The addresses [begin, end) from the first byte of a tensor's elements to the end of the last.
struct MemorySpan {
  uintptr_t begin = 0;
  uintptr_t end = 0;
};

/// Returns an empty span for a tensor without elements. kInvalidArgument: the dtype is unknown, the
/// length overflows, CheckStrides rejects the strides, or `data` is null although there are
/// elements.
Result<MemorySpan> SpanOf(const TensorView& view);

/// Returns the span of row-major contiguous memory. Errors: see SpanOf.
Result<MemorySpan> ContiguousSpan(DType dtype, std::span<const uint64_t> shape,
                                  const std::byte* data);

/// Groups spans that overlap, directly or through other spans. Returns the indices of each group,
/// ascending by address. Empty spans are not in any group. Cost: one sort.
std::vector<std::vector<size_t>> OverlapGroups(std::span<const MemorySpan> spans);

}  // namespace cairn::core::internal
