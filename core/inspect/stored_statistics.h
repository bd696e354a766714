#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Statistics of a tensor as its save recorded them, so that no payload is read.

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "core/step/contents.h"
#include "kv/base/chunk_record.h"
#include "kv/base/error.h"
#include "kv/base/step_info.h"
#include "kv/store.h"

namespace cairn::core {

/// core/tensor/element_statistics.h defines which elements count as values.
struct StoredStatistics {
  uint64_t count = 0;
  uint64_t zeros = 0;
  uint64_t nans = 0;
  uint64_t infs = 0;  // positive and negative
  /// Smallest and largest value, infinities included; NaN if every value is a NaN.
  double min = std::numeric_limits<double>::quiet_NaN();
  double max = std::numeric_limits<double>::quiet_NaN();
  double mean = 0;  // mean of the finite values; NaN if there are none

  double abs_max() const { return std::fmax(std::fabs(min), std::fabs(max)); }
};

/// Returns what the save of `step` recorded about the values of each tensor
/// (SaveOptions::statistics); nothing for an alias, and for a tensor of which a chunk has none.
/// Reads no payload. Requires that `tensors` belong to `step` and ascend by FQN, as in the result
/// of CheckpointStore::List. Errors: see CheckpointStore::ForEachChunk.
Result<std::vector<std::optional<StoredStatistics>>> FindStatistics(
    const kv::Store& store, const kv::StepInfo& step, std::span<const TensorInfo> tensors);

namespace internal {

/// Combines the statistics of the chunks of a tensor.
class CombinedStatistics {
 public:
  /// Adds a chunk. `weight` is the weight of its mean.
  void Add(const kv::ChunkStatistics& part, double weight);
  /// Returns everything except the count.
  StoredStatistics Finish() const;

 private:
  StoredStatistics sum_;
  double mean_ = 0;
  double weight_ = 0;
};

}  // namespace internal
}  // namespace cairn::core
