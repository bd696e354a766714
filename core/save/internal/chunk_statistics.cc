#include "core/save/internal/chunk_statistics.h"

#include <algorithm>

#include "core/tensor/internal/finite_summary.h"

namespace cairn::core::internal {
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
      const uint64_t count = summarized / schema::ElementBytes(dtype_);
      summary_.Add({.min = summary.min,
                    .max = summary.max,
                    .mean = summary.sum / static_cast<double>(count),
                    .finite = count,
                    .zeros = summary.zeros});
    }
    if (summarized < block.size()) AddOthers(block.subspan(summarized));
  }
}

void ChunkStatisticsAccumulator::AddOthers(std::span<const std::byte> bytes) {
  if (!others_) others_.emplace(dtype_);
  others_->Add(bytes);
}

kv::ChunkStatistics ChunkStatisticsAccumulator::Finish() const {
  ElementSummary all = summary_;
  if (others_) {
    const Statistics others = others_->Finish();
    ElementSummary rest{.mean = others.mean.value_or(0),
                        .finite = others.count - others.nans - others.infs,
                        .zeros = others.zeros,
                        .nans = others.nans,
                        .infs = others.infs};
    rest.min = others.min.value_or(rest.min);
    rest.max = others.max.value_or(rest.max);
    all.Add(rest);
  }
  return all.ToStatistics();
}

}  // namespace cairn::core::internal
