#pragma once
// SPDX-License-Identifier: Apache-2.0
/// By how much the values of tensors differ between two steps.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/progress.h"
#include "kv/base/error.h"
#include "kv/base/step_info.h"
#include "kv/store.h"

namespace cairn::core {

struct ValueDifference {
  uint64_t elements = 0;            // elements of either tensor
  uint64_t differing_elements = 0;  // elements with different bits
  uint64_t not_comparable = 0;      // NaN or Inf in one tensor only, or different ones in both
  double largest_absolute = 0;      // over the comparable elements
  bool numeric = false;             // false: the dtype has no numbers, only bits were compared
};

/// Compares the tensors `fqns` of step `a` with those of step `b`. Returns one result per name,
/// which is empty if dtype or shape differ. Requires that the names ascend without duplicates.
/// `progress` receives the bytes that were read, divided by two, and 0.
/// kNotFound: a step does not have a tensor. kResourceExhausted: see CheckRepeats. kCancelled:
/// `progress` asked to stop. Other errors: see CheckpointStore::Load.
/// Cost: reads the tensors of both steps, many small ones at once. Memory: 32 MiB, the records of
/// about a thousand tensors, and a load.
Result<std::vector<std::optional<ValueDifference>>> CompareValues(const kv::Store& store,
                                                                  const kv::StepInfo& a,
                                                                  const kv::StepInfo& b,
                                                                  std::span<const std::string> fqns,
                                                                  const Progress& progress);

}  // namespace cairn::core
