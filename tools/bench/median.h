#pragma once
/// The median of a series of measurements.

#include <algorithm>
#include <cstddef>
#include <vector>

namespace cairn::tools {

/// Returns the mean of the two middle values if their number is even. Requires at least one value.
inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace cairn::tools
