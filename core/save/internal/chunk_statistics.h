#pragma once
/// Computes the statistics of a chunk while its pages are in the cache.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/step/internal/combined_statistics.h"
#include "core/tensor/element_cast.h"
#include "core/tensor/element_statistics.h"
#include "kv/base/chunk_record.h"
#include "schema/dtype.h"

namespace cairn::core::internal {

/// core/tensor/element_statistics.h defines which elements count as values. Elements of float32,
/// float64, and types that FindElementCast converts to float32 take about as long as a read of the
/// cache; others are decoded one by one. Threads: one at a time. Memory: constant.
class ChunkStatisticsAccumulator {
 public:
  explicit ChunkStatisticsAccumulator(DType dtype);

  /// Adds complete elements, which need no alignment. `ahead` is where bytes that will be needed
  /// next begin; they need not exist.
  void Add(std::span<const std::byte> bytes, const std::byte* ahead);
  /// Call once, after the last Add.
  kv::ChunkStatistics Finish();

 private:
  void AddOneByOne(std::span<const std::byte> bytes);

  const DType dtype_;
  const ElementCast to_float_;                   // null: there is none, or it is not needed
  CombinedStatistics all_;                       // without `others_`
  std::optional<StatisticsAccumulator> others_;  // elements that were decoded one by one
};

}  // namespace cairn::core::internal
