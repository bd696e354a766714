#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Statistics and histograms of the elements of a tensor, and elements as text and numbers, for
/// every dtype.
///
/// One element counts as one value, with these exceptions: float4_e2m1fn_x2 has two values per
/// byte, and both count. A complex number counts once, as its magnitude (NaN if a part is NaN,
/// infinite if a part is infinite). The integer types below 8 bits have one element per byte and
/// are read as that byte, signed or unsigned. The bits* types are read as unsigned integers.

#include <complex>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"

namespace cairn::core {

struct Statistics {
  uint64_t count = 0;
  uint64_t zeros = 0;
  uint64_t nans = 0;
  uint64_t infs = 0;  // positive and negative
  /// Smallest and largest value, infinities included; empty if every value is a NaN or there is
  /// none.
  std::optional<double> min;
  std::optional<double> max;
  /// Smallest and largest finite value; empty if there is none.
  std::optional<double> finite_min;
  std::optional<double> finite_max;
  /// The same values as text, exact also for integers that a double cannot represent.
  std::string min_text;
  std::string max_text;
  /// Mean and population standard deviation (divided by n) of the finite values; empty if there are
  /// none.
  std::optional<double> mean;
  std::optional<double> std_deviation;
};

/// Accumulates the statistics of a stream of elements. Threads: one at a time. Memory: constant.
class StatisticsAccumulator {
 public:
  explicit StatisticsAccumulator(DType dtype);
  ~StatisticsAccumulator();
  StatisticsAccumulator(StatisticsAccumulator&&) noexcept;
  StatisticsAccumulator& operator=(StatisticsAccumulator&&) noexcept;

  /// Adds complete elements, which need no alignment. Requires that bytes.size() is a multiple of
  /// ElementBytes(dtype).
  void Add(std::span<const std::byte> bytes);
  Statistics Finish() const;

  class Impl;

 private:
  uint64_t element_bytes_ = 0;  // 0: an unknown dtype, whose bytes are ignored
  std::unique_ptr<Impl> impl_;
};

/// Counts of finite values in bins of equal width. Bin i contains the values from low + i * width,
/// included, to low + (i + 1) * width, excluded; the last bin includes its end.
struct Histogram {
  double low = 0;
  double width = 0;  // 0 if there is one bin, for one value
  std::vector<uint64_t> counts;
};

/// Accumulates the histogram of a stream of elements. The top of this file defines
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

/// Formats one element as the shortest text that parses to the same value of its type: "(1+2j)",
/// "True", "nan", "-inf", and "[0.5, -6]" for both values of a float4_e2m1fn_x2. Returns "?" for an
/// unknown dtype, or if `bytes` is not one element long.
std::string FormatElement(DType dtype, std::span<const std::byte> bytes);

/// Returns one element as a number; empty for float4_e2m1fn_x2, for an unknown dtype, or if `bytes`
/// is not one element long. 64-bit integers are rounded to a double.
std::optional<std::complex<double>> ElementValue(DType dtype, std::span<const std::byte> bytes);

}  // namespace cairn::core
