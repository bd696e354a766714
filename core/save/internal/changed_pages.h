#pragma once
/// Decides which pages of a changed chunk are written, and which remain where the base step has
/// them. If a device has the tensor and the digests of the base, cuda/internal/digest_kernel.cu
/// compares them there. Threads: all functions are pure.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kv/base/extents.h"
#include "kv/base/payload.h"

namespace cairn::core::internal {

/// Returns the largest number of extents that a chunk may have. Two pages (128 KiB) per extent on
/// average keep reads nearly as fast as with one extent, and 512 extents keep the record below
/// about 16 KiB. Small chunks may have up to 32 extents, even of one page each.
inline constexpr uint64_t kFewExtents = 32;
inline constexpr uint64_t kManyExtents = 512;
constexpr uint64_t MaxExtents(uint64_t page_count) {
  const uint64_t pairs = page_count / 2;
  return pairs < kFewExtents ? kFewExtents : pairs > kManyExtents ? kManyExtents : pairs;
}

/// The ranges of pages to write, in order, and what is referenced in the base between them.
struct PageRanges {
  std::vector<kv::PageRange> written;
  /// The extents of the chunk in order: a part of an extent of the base, or nothing for the next
  /// one in `written`.
  std::vector<std::optional<kv::Extent>> extents;

  /// Returns the extents of the chunk after the ranges have been appended. Requires one of
  /// `appended` for each of `written`.
  kv::Extents Join(std::span<const kv::Extent> appended) const;
};

/// Returns which pages have different digests. Requires the same number of both.
std::vector<bool> ChangedPages(std::span<const uint64_t> page_digests,
                               std::span<const uint64_t> base_page_digests);

/// Returns nothing if the chunk should be written completely, because more than half of its pages
/// changed or it would have more than MaxExtents. Requires that `changed` has one element for each
/// page of the chunk, which has the length of `base`.
std::optional<PageRanges> PlanPageRanges(const std::vector<bool>& changed, const kv::Extents& base);

}  // namespace cairn::core::internal
