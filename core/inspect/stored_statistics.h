#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Statistics of a tensor as its save recorded them, so that no payload is read.

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace cairn::core {

/// core/tensor/element_statistics.h defines which elements count as values.
struct StoredStatistics {
  uint64_t count = 0;
  uint64_t zeros = 0;
  uint64_t nans = 0;
  uint64_t infs = 0;  // positive and negative
  /// Smallest and largest value, infinities included; NaN if every value is a NaN.
  double min = 0;
  double max = 0;
  double mean = 0;  // mean of the finite values; NaN if there are none

  double abs_max() const { return std::max(std::fabs(min), std::fabs(max)); }
};

}  // namespace cairn::core
