#pragma once
/// Which tensors of a state share memory, and which of them holds the bytes.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/tensor/tensor.h"

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

struct NamedTensor {
  std::string fqn;
  TensorView view;
};

/// A tensor as it goes into the store: its record, and the memory to write unless it is an alias.
struct PlannedTensor {
  TensorInfo info;    // chunk_count not yet set
  TensorView source;  // empty for aliases
};

/// Decides owners and aliases. In a group of overlapping tensors the row-major tensor that covers
/// all of the group's memory (the first by FQN) owns the bytes; if there is none, a hidden uint8
/// tensor
/// "<first FQN>.__storage__" does. Result in key order.
Result<std::vector<PlannedTensor>> PlanTensors(std::span<const NamedTensor> tensors);

}  // namespace cairn::core::internal
