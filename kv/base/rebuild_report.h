#pragma once
// SPDX-License-Identifier: Apache-2.0
/// What Store::Rebuild recovered.

#include <cstdint>
#include <vector>

#include "kv/base/error.h"

namespace cairn::kv {

struct RebuildReport {
  uint64_t steps = 0;        // number of steps that the new root names
  std::vector<Error> lost;   // what could not be recovered
  std::vector<Error> notes;  // damaged roots, and what was recovered only in part, or by assumption
};

}  // namespace cairn::kv
