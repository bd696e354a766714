#pragma once
/// Which tensors of a state share memory, and which of them holds the bytes.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/step/contents.h"
#include "core/tensor/tensor.h"

namespace cairn::core::internal {

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
