#pragma once
/// Chooses the steps whose records a report reads.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/base/annotations.h"
#include "kv/base/step_info.h"

namespace cairn::core::internal {

/// Returns about how many chunk records are read if all steps are examined one after the other.
uint64_t ExpectedRecords(std::span<const kv::StepInfo> steps);

/// Returns whether a step continues another one than the step before it in the list.
bool IsFork(std::span<const kv::StepInfo> steps, size_t index);

/// Returns the indices of the steps to be examined, in ascending order: all of them if this reads
/// at most about `max_records` records (0: no limit), otherwise evenly distributed ones, the first,
/// the last, those with tags, and both sides of forks.
std::vector<size_t> ChooseSteps(std::span<const kv::StepInfo> steps, const kv::Tags& tags,
                                uint64_t max_records);

}  // namespace cairn::core::internal
