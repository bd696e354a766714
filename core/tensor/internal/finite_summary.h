#pragma once
/// Sums up blocks of floating-point elements at the speed of memory.

#include <cstddef>
#include <cstdint>
#include <span>

#include "schema/dtype.h"

namespace cairn::core::internal {

/// The longest block.
inline constexpr size_t kSummaryBlockBytes = 4096;
/// While this number of bytes is summed up, one byte is fetched ahead.
inline constexpr size_t kPrefetchInterval = 4;

/// Summary of elements that are all finite.
struct FiniteSummary {
  double min = 0;
  double max = 0;
  double sum = 0;  // added up in float for elements below 8 bytes
  uint64_t zeros = 0;
};

/// Returns true for bfloat16, float16, float32 and float64.
bool HasFiniteSummary(schema::DType dtype);

/// Sums up the first elements of a block, which need no alignment, and returns how many bytes they
/// have: all but a rest of less than one vector. Returns 0 if one of them is not finite, or their
/// sum is not. Requires HasFiniteSummary, complete elements, and at most kSummaryBlockBytes.
///
/// In the meantime, the bytes from `ahead` on, one per kPrefetchInterval of the block's, are
/// fetched into the cache, so that the memory is not idle. They need not exist.
size_t SummarizeFinite(schema::DType dtype, std::span<const std::byte> block,
                       const std::byte* ahead, FiniteSummary& summary);

}  // namespace cairn::core::internal
