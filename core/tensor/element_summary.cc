#include "core/tensor/element_summary.h"

#include <algorithm>

namespace cairn::core {

void ElementSummary::Add(const ElementSummary& other) {
  min = std::min(min, other.min);
  max = std::max(max, other.max);
  zeros += other.zeros;
  nans += other.nans;
  infs += other.infs;
  if (other.finite == 0) return;
  // Not by sums, which might be infinite.
  const double all = static_cast<double>(finite + other.finite);
  mean = mean * (static_cast<double>(finite) / all) +
         other.mean * (static_cast<double>(other.finite) / all);
  finite += other.finite;
}

kv::ChunkStatistics ElementSummary::ToStatistics() const {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  return {.min = min > max ? kNone : min,
          .max = min > max ? kNone : max,
          .mean = finite == 0 ? kNone : mean,
          .zeros = zeros,
          .nans = nans,
          .infs = infs};
}

}  // namespace cairn::core
