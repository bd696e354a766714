#pragma once
/// The memory that tensors touch, and which of them overlap.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor/tensor.h"
#include "kv/error.h"

namespace cairn::core::internal {

/// The memory that a tensor's elements touch: [begin, end), addresses.
struct MemorySpan {
  uintptr_t begin = 0;
  uintptr_t end = 0;
};

/// Empty for a tensor without elements. kInvalidArgument: unknown dtype, overflow, strides that are
/// not one a dimension, or elements at a null pointer.
Result<MemorySpan> SpanOf(const TensorView& view);

/// Groups of spans that overlap, directly or through others; by index, each group ascending by
/// address. Empty spans are in no group. Cost: one sort.
std::vector<std::vector<size_t>> OverlapGroups(std::span<const MemorySpan> spans);

}  // namespace cairn::core::internal
