#pragma once
/// Combines the statistics of parts of a tensor.

#include <cmath>
#include <utility>

#include "kv/base/chunk_record.h"

namespace cairn::core::internal {

struct CombinedStatistics {
  kv::ChunkStatistics sum;
  double weight = 0;  // of sum.mean

  /// Adds a part. `mean_weight` is the weight of its mean; 0: the mean has no effect.
  void Add(const kv::ChunkStatistics& part, double mean_weight) {
    sum.min = std::fmin(sum.min, part.min);  // the other one if one is NaN
    sum.max = std::fmax(sum.max, part.max);
    sum.zeros += part.zeros;
    sum.nans += part.nans;
    sum.infs += part.infs;
    if (!(mean_weight > 0)) return;
    // Part by part, because a sum of all values might be infinite.
    const double before = std::exchange(weight, weight + mean_weight);
    sum.mean = part.mean * (mean_weight / weight) + (before > 0 ? sum.mean * (before / weight) : 0);
  }
};

}  // namespace cairn::core::internal
