#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Weighted means of steps, which CheckpointStore::Merge computes.

#include <cstdint>
#include <vector>

#include "core/base/progress.h"
#include "kv/base/step_info.h"

namespace cairn::core {

struct MergeOptions {
  /// One weight per step, in the order of the steps; empty: equal weights. They are divided by
  /// their sum. A single weight may be negative.
  std::vector<double> weights;
  bool overwrite = false;  // replace the new step if it exists
  Progress progress;       // in bytes of the steps that are merged
};

struct MergeReport {
  kv::StepInfo step;        // the new step
  uint64_t bytes_read = 0;  // from storage, including rounding to pages
  double seconds = 0;
};

}  // namespace cairn::core
