#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Histograms of the elements of a tensor, for every dtype.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor/tensor.h"

namespace cairn::core {

/// Counts of finite values in bins of equal width. Bin i contains the values from low + i * width,
/// included, to low + (i + 1) * width, excluded; the last bin includes its end.
struct Histogram {
  double low = 0;
  double width = 0;  // 0 if there is one bin, for one value
  std::vector<uint64_t> counts;
};

/// Accumulates the histogram of a stream of elements. core/tensor/element_statistics.h defines
/// which elements count as values. Threads: one at a time. Memory: constant.
class HistogramAccumulator {
 public:
  /// The bins, at most `max_bins` (at least 1), contain all values from `low` to `high`, which are
  /// finite; values beyond count in the first or the last bin. Bins of integers have a whole width.
  /// 64-bit integers are rounded to a double.
  HistogramAccumulator(DType dtype, double low, double high, size_t max_bins);

  /// Adds complete elements, which need no alignment. Requires that bytes.size() is a multiple of
  /// ElementBytes(dtype).
  void Add(std::span<const std::byte> bytes);
  const Histogram& histogram() const { return histogram_; }

 private:
  DType dtype_ = DType::kUnknown;
  Histogram histogram_;
};

}  // namespace cairn::core
