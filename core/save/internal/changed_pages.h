#pragma once
/// Decides which pages of a changed chunk are written, and which remain where the base step has
/// them. If a device has the tensor and the digests of the base, cuda/internal/digest_kernel.cu
/// compares them there. Threads: all functions are pure.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kv/base/digest.h"
#include "kv/base/error.h"
#include "kv/base/extents.h"
#include "kv/base/payload.h"

namespace cairn::core::internal {

/// Returns the largest number of extents that a chunk may have. Two pages (128 KiB) per extent on
/// average keep reads nearly as fast as with one extent, and 512 extents keep the record below
/// about 16 KiB. Small chunks may have up to 32 extents, even of one page each.
inline constexpr uint64_t kFewExtents = 32;
inline constexpr uint64_t kManyExtents = 512;
constexpr uint64_t MaxExtents(uint64_t page_count) {
  return std::clamp(page_count / 2, kFewExtents, kManyExtents);
}

/// The ranges of pages to write, in order, and what is referenced in the base between them.
struct PageRanges {
  std::vector<kv::PageRange> written;
  /// The extents of the chunk in order: a part of an extent of the base, or nothing for the next
  /// one in `written`.
  std::vector<std::optional<kv::Extent>> extents;

  /// Returns the extents of the chunk after the ranges have been appended. Requires one of
  /// `appended` for each of `written`.
  kv::Extents Join(std::span<const kv::Extent> appended) const {
    CAIRN_CHECK(appended.size() == written.size());
    std::vector<kv::Extent> joined;
    joined.reserve(extents.size());
    auto next = appended.begin();
    for (const auto& extent : extents) joined.push_back(extent ? *extent : *next++);
    return kv::Extents(joined);
  }
};

/// Returns which pages have different digests. Requires the same number of both.
inline std::vector<bool> ChangedPages(std::span<const uint64_t> page_digests,
                                      std::span<const uint64_t> base_page_digests) {
  CAIRN_CHECK(page_digests.size() == base_page_digests.size());
  std::vector<bool> changed(page_digests.size());
  for (size_t page = 0; page < page_digests.size(); ++page) {
    changed[page] = page_digests[page] != base_page_digests[page];
  }
  return changed;
}

/// Returns nothing if the chunk should be written completely, because more than half of its pages
/// changed or it would have more than MaxExtents. Requires that `changed` has one element for each
/// page of the chunk, which has the length of `base`.
inline std::optional<PageRanges> PlanPageRanges(const std::vector<bool>& changed,
                                                const kv::Extents& base) {
  const uint64_t length_bytes = base.length_bytes();
  CAIRN_CHECK(changed.size() == kv::PageCount(length_bytes));
  if (2 * static_cast<uint64_t>(std::ranges::count(changed, true)) > changed.size()) {
    return std::nullopt;
  }
  PageRanges ranges;
  for (auto begin = changed.begin(); begin != changed.end();) {
    const auto end = std::find(begin, changed.end(), !*begin);
    const auto begin_page = static_cast<uint64_t>(begin - changed.begin());
    const auto end_page = static_cast<uint64_t>(end - changed.begin());
    if (*begin) {
      ranges.written.push_back({.begin_page = begin_page, .end_page = end_page});
      ranges.extents.emplace_back();
    } else {
      const uint64_t end_bytes = std::min(end_page * kv::kPageBytes, length_bytes);
      for (uint64_t at = begin_page * kv::kPageBytes; at < end_bytes;) {
        const kv::Extent rest = base.At(at);
        const kv::Extent part = rest.First(std::min(rest.length_bytes, end_bytes - at));
        ranges.extents.push_back(part);
        at += part.length_bytes;
      }
    }
    if (ranges.extents.size() > MaxExtents(changed.size())) return std::nullopt;
    begin = end;
  }
  return ranges;
}

}  // namespace cairn::core::internal
