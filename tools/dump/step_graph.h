#pragma once
/// The tree of steps: which step continued from which, as lines of text.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/base/step_info.h"

namespace cairn::tools {

/// A line of the graph: a step, an absent parent of steps, or only connections between the lines
/// above and below.
struct GraphLine {
  std::string text;  // "| * ", and so on
  const kv::StepInfo* step = nullptr;
  std::optional<uint64_t> absent;  // number of the absent parent
};

/// Returns the graph of `steps`: each step is above its parent, and otherwise newer ones are above
/// older ones. ":" leads from an absent parent to the step from which it probably descends
/// (core::FindDescent). The lines point into `steps`.
std::vector<GraphLine> DrawSteps(std::span<const kv::StepInfo> steps);

}  // namespace cairn::tools
