// Histograms of the elements of a tensor.

#include "core/tensor/element_histogram.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "core/tensor/internal/element.h"
#include "core/tensor/internal/element_numbers.h"

namespace cairn::core {
namespace {

bool HasIntegers(DType dtype) {
  bool is_integral = false;
  internal::VisitDType(dtype, [&]<typename Element>(Element) {
    is_integral = std::is_integral_v<typename internal::ElementNumbers<Element>::Number>;
  });
  return is_integral;
}

}  // namespace

HistogramAccumulator::HistogramAccumulator(DType dtype, double low, double high, size_t max_bins)
    : dtype_(dtype) {
  CAIRN_CHECK(std::isfinite(low) && std::isfinite(high) && low <= high && max_bins > 0);
  histogram_.low = low;
  const auto most = static_cast<double>(max_bins);
  if (low == high) {
    histogram_.counts.resize(1);
  } else if (HasIntegers(dtype)) {
    histogram_.width = std::max(1.0, std::ceil((high - low + 1) / most));
    histogram_.counts.resize(
        std::min(max_bins, static_cast<size_t>((high - low) / histogram_.width) + 1));
  } else {
    histogram_.width = high / most - low / most;  // the difference may be larger than any double
    histogram_.counts.resize(max_bins);
    // Denormal values that are close to each other may have no number between them.
    if (!(histogram_.width > 0)) histogram_.counts.resize(1);
  }
}

void HistogramAccumulator::Add(std::span<const std::byte> bytes) {
  const double last = static_cast<double>(histogram_.counts.size() - 1);
  const double low = histogram_.low, width = histogram_.width;
  const auto bin_of = [&](double value) -> size_t {
    if (!(width > 0)) return 0;
    const double distance = value - low;  // may be larger than any double
    const double at = std::isfinite(distance) ? distance / width : value / width - low / width;
    return static_cast<size_t>(std::clamp(std::floor(at), 0.0, last));
  };
  internal::VisitDType(dtype_, [&]<typename Element>(Element) {
    internal::ForEachBlock<Element>(bytes, [&](auto numbers) {
      for (const auto number : numbers) {
        const auto value = static_cast<double>(number);
        if (std::isfinite(value)) ++histogram_.counts[bin_of(value)];
      }
    });
  });
}

}  // namespace cairn::core
