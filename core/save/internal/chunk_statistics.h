#pragma once
/// Computes the statistics of a chunk while its pages are in the cache.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

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
  /// Adds the statistics of elements of which `finite_count` are finite.
  void Include(const kv::ChunkStatistics& some, uint64_t finite_count);

  const DType dtype_;
  const ElementCast to_float_;                   // null: there is none, or it is not needed
  kv::ChunkStatistics all_;                      // without `others_`
  uint64_t finite_count_ = 0;                    // elements in all_.mean
  std::optional<StatisticsAccumulator> others_;  // elements that were decoded one by one
};

}  // namespace cairn::core::internal
