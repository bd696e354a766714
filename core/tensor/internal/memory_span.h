#pragma once
/// Computes the memory that tensors occupy, and which tensors overlap.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor/internal/tensor_ref.h"
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
Result<MemorySpan> SpanOf(const TensorRef& view);

/// Returns the span of row-major contiguous memory. Errors: see SpanOf.
Result<MemorySpan> ContiguousSpan(DType dtype, std::span<const uint64_t> shape,
                                  const std::byte* data);

/// Groups of spans that overlap, directly or through other spans. Empty spans are not in any group.
/// Ownership: a moved object keeps its groups. Threads: as for a value.
class OverlapGroups {
 public:
  /// Cost: one sort, if the spans do not ascend.
  explicit OverlapGroups(std::span<const MemorySpan> spans);
  OverlapGroups(OverlapGroups&&) = default;

  /// The indices of each group, ascending by address; the caller may reorder them.
  auto begin() const { return groups_.begin(); }
  auto end() const { return groups_.end(); }

 private:
  std::vector<size_t> order_;
  std::vector<std::span<size_t>> groups_;  // parts of order_
};

}  // namespace cairn::core::internal
