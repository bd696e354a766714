#pragma once
/// Computes the statistics of a chunk while its pages are in the cache.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/tensor/element_statistics.h"
#include "kv/base/chunk_record.h"
#include "schema/dtype.h"

namespace cairn::core::internal {

/// core/tensor/element_statistics.h defines which elements count as values. Elements of bfloat16,
/// float16, float32 and float64 take about as long as a read of the cache; others are decoded one
/// by one. Threads: one at a time. Memory: constant.
class ChunkStatisticsAccumulator {
 public:
  explicit ChunkStatisticsAccumulator(DType dtype);

  /// Adds complete elements, which need no alignment. `ahead` is where bytes that will be needed
  /// next begin; they need not exist.
  void Add(std::span<const std::byte> bytes, const std::byte* ahead);
  kv::ChunkStatistics Finish() const;

 private:
  /// Adds elements one by one.
  void AddOthers(std::span<const std::byte> bytes);

  const DType dtype_;
  const bool is_fast_;
  ElementSummary summary_;                       // summary of blocks whose values are all finite
  std::optional<StatisticsAccumulator> others_;  // for blocks with values that are not finite
};

}  // namespace cairn::core::internal
