#pragma once
/// Which pages of a changed chunk are written, and which stay where the base step has them.
/// Threads: all functions are pure.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kv/extents.h"
#include "kv/payload.h"

namespace cairn::core::internal {

/// A chunk may lie in so many extents: on average at least two pages, 128 KiB, lie together, which
/// keeps reading near the speed of one run; and in a large chunk no more than make a record of some
/// 16 KiB. A chunk of up to kFewExtents pages may be scattered as it likes.
inline constexpr uint64_t kFewExtents = 32;
inline constexpr uint64_t kManyExtents = 512;
constexpr uint64_t MaxExtents(uint64_t page_count) {
  const uint64_t pairs = page_count / 2;
  return pairs < kFewExtents ? kFewExtents : pairs > kManyExtents ? kManyExtents : pairs;
}

/// Pages to be written, in order, and what is taken from the base around them.
struct PageRanges {
  std::vector<kv::PageRange> written;
  /// One for each run of pages in the chunk: a part of the base's extents, or nothing where the
  /// next of `written` goes.
  std::vector<std::optional<kv::Extent>> extents;

  /// The chunk's extents, once the runs are written. Requires one of `appended` for each of
  /// `written`.
  kv::Extents Join(std::span<const kv::Extent> appended) const;
};

/// Pages whose digests differ. Requires as many of the one as of the other.
std::vector<bool> ChangedPages(std::span<const uint64_t> page_digests,
                               std::span<const uint64_t> base_page_digests);

/// Nothing: the chunk is better written whole, because more than half of its pages changed or it
/// would lie in more than MaxExtents. `changed` has one for each page of the chunk, which has the
/// length of `base`.
std::optional<PageRanges> PlanPageRanges(const std::vector<bool>& changed, const kv::Extents& base);

}  // namespace cairn::core::internal
