#include "core/save/internal/chunk_statistics.h"

#include <algorithm>

#include "core/tensor/internal/finite_summary.h"

namespace cairn::core::internal {
namespace {

/// Returns the mean of `count` values with the mean `mean` and of others. Not by sums, which might
/// be infinite. Requires that there is a value.
double CombinedMean(double mean, uint64_t count, double other_mean, uint64_t other_count) {
  const double all = static_cast<double>(count + other_count);
  return mean * (static_cast<double>(count) / all) +
         other_mean * (static_cast<double>(other_count) / all);
}

}  // namespace

ChunkStatisticsAccumulator::ChunkStatisticsAccumulator(DType dtype)
    : dtype_(dtype), is_fast_(HasFiniteSummary(dtype)) {}

void ChunkStatisticsAccumulator::Add(std::span<const std::byte> bytes, const std::byte* ahead) {
  if (!is_fast_) return AddOthers(bytes);
  for (size_t at = 0; at < bytes.size(); at += kSummaryBlockBytes) {
    const auto block = bytes.subspan(at, std::min(bytes.size() - at, kSummaryBlockBytes));
    FiniteSummary summary;
    const size_t summarized =
        SummarizeFinite(dtype_, block, ahead + at / kPrefetchInterval, summary);
    if (summarized > 0) {
      min_ = std::min(min_, summary.min);
      max_ = std::max(max_, summary.max);
      zeros_ += summary.zeros;
      const uint64_t count = summarized / schema::ElementBytes(dtype_);
      mean_ = CombinedMean(mean_, count_, summary.sum / static_cast<double>(count), count);
      count_ += count;
    }
    if (summarized < block.size()) AddOthers(block.subspan(summarized));
  }
}

void ChunkStatisticsAccumulator::AddOthers(std::span<const std::byte> bytes) {
  if (!others_) others_.emplace(dtype_);
  others_->Add(bytes);
}

kv::ChunkStatistics ChunkStatisticsAccumulator::Finish() const {
  const Statistics others = others_ ? others_->Finish() : Statistics();
  const uint64_t other_count = others.count - others.nans - others.infs;
  const double min = std::min(min_, others.min.value_or(min_));
  const double max = std::max(max_, others.max.value_or(max_));
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const uint64_t count = count_ + other_count;
  return {.min = min > max ? kNone : min,
          .max = min > max ? kNone : max,
          .mean = count == 0 ? kNone
                             : CombinedMean(mean_, count_, others.mean.value_or(0), other_count),
          .zeros = zeros_ + others.zeros,
          .nans = others.nans,
          .infs = others.infs};
}

}  // namespace cairn::core::internal
