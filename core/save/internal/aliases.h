#pragma once
/// Determines which tensors of a state share memory, and which of them owns the bytes.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/save/internal/save_plan.h"
#include "core/step/contents.h"
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

/// Decides owners and aliases, and returns all tensors in any order. In a group of tensors that
/// overlap in memory, the first tensor by FQN that is row-major and covers all memory of the group
/// owns the bytes. If there is none, a hidden uint8 tensor "<first FQN>.__storage__" owns them. Its
/// name is not that of a value, either; not even of a short one, as it may be long on other ranks.
/// kInvalidArgument: a tensor without memory, or of impossible size; names the key.
Result<std::vector<PlannedTensor>> PlanTensors(std::span<const NamedTensor> tensors,
                                               std::span<const NamedRecord> values);

}  // namespace cairn::core::internal
