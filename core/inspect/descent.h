#pragma once
// SPDX-License-Identifier: Apache-2.0
/// From which step each step of a store continued.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kv/base/step_info.h"

namespace cairn::core {

/// A step from which others continued, and which was deleted or replaced.
struct AbsentParent {
  uint64_t step = 0;
  /// The step from which it probably descends: the one of the same run that was saved before its
  /// first child, unless that one has a higher number or another child. An index in the steps.
  std::optional<size_t> before;
};

struct Descent {
  /// Of each step: the index of its parent in the steps, or their number plus an index in `absent`.
  std::vector<std::optional<size_t>> parents;
  std::vector<AbsentParent> absent;
};

/// Finds the parents of `steps`, those of one store. A step that was replaced by another one with
/// the same number is absent, unless an edit of itself has replaced it (kv/base/retention.h).
Descent FindDescent(std::span<const kv::StepInfo> steps);

/// The steps on the way to a step.
struct LineOfSteps {
  std::vector<kv::StepInfo> steps;  // the oldest first
  std::vector<uint64_t> absent;     // numbers of absent parents that are between or before these
};

/// Returns the line that ends with `steps[last]`: each step continued from the one before it, or
/// from an absent one that probably descends from it.
LineOfSteps FindLine(std::span<const kv::StepInfo> steps, size_t last);

}  // namespace cairn::core
