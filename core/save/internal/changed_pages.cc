#include "core/save/internal/changed_pages.h"

#include <algorithm>

#include "kv/base/digest.h"
#include "kv/base/error.h"

namespace cairn::core::internal {

kv::Extents PageRanges::Join(std::span<const kv::Extent> appended) const {
  CAIRN_CHECK(appended.size() == written.size());
  std::vector<kv::Extent> joined;
  joined.reserve(extents.size());
  auto next = appended.begin();
  for (const auto& extent : extents) joined.push_back(extent ? *extent : *next++);
  return kv::Extents(joined);
}

std::vector<bool> ChangedPages(std::span<const uint64_t> page_digests,
                               std::span<const uint64_t> base_page_digests) {
  CAIRN_CHECK(page_digests.size() == base_page_digests.size());
  std::vector<bool> changed(page_digests.size());
  for (size_t page = 0; page < page_digests.size(); ++page) {
    changed[page] = page_digests[page] != base_page_digests[page];
  }
  return changed;
}

std::optional<PageRanges> PlanPageRanges(const std::vector<bool>& changed,
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
