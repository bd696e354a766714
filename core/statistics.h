#pragma once
/// Numbers about the elements of a tensor, and elements as text, for every dtype.
///
/// What counts as one element: a value. float4_e2m1fn_x2 holds two a byte and both count. Complex
/// numbers count once, with their magnitude (NaN if a part is NaN, infinite if a part is). The
/// small integer types lie one a byte and are read as that byte, signed or not; bits* are read as
/// unsigned integers of their storage.

#include <complex>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/checkpoint_store.h"

namespace cairn::core {

struct Statistics {
  uint64_t count = 0;
  uint64_t zeros = 0;
  uint64_t nans = 0;
  uint64_t infs = 0;  // of either sign
  /// Over all that is no NaN, infinities included; nothing if there is no such element.
  std::optional<double> min;
  std::optional<double> max;
  /// The same, exact for integers too large for a double.
  std::string min_text;
  std::string max_text;
  /// Over finite elements; std is that of the population (divided by n). Nothing if there is none.
  std::optional<double> mean;
  std::optional<double> std_deviation;
};

/// Threads: one at a time. Memory: constant.
class StatisticsAccumulator {
 public:
  explicit StatisticsAccumulator(DType dtype);
  ~StatisticsAccumulator();
  StatisticsAccumulator(StatisticsAccumulator&&) noexcept;
  StatisticsAccumulator& operator=(StatisticsAccumulator&&) noexcept;

  /// Adds whole elements; any alignment. Requires bytes.size() to be a multiple of ElementBytes.
  void Add(std::span<const std::byte> bytes);
  Statistics Finish() const;

  class Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

/// Statistics of a stored tensor, streamed in bounded memory.
Result<Statistics> ComputeStatistics(const CheckpointStore& store, const kv::StepInfo& step,
                                     const TensorInfo& tensor);

/// One element as text: shortest form that reads back as the same value of its type; "(1+2j)",
/// "True", "nan", "-inf"; both halves of a float4_e2m1fn_x2 as "[0.5, -6]". Requires
/// bytes.size() == ElementBytes(dtype); "?" for unknown dtypes.
std::string FormatElement(DType dtype, std::span<const std::byte> bytes);

/// One element as a number; nothing for float4_e2m1fn_x2, unknown dtypes and a wrong size. 64-bit
/// integers are rounded to a double.
std::optional<std::complex<double>> ElementValue(DType dtype, std::span<const std::byte> bytes);

}  // namespace cairn::core
