#include "core/save/internal/changed_pages.h"

#include <algorithm>

#include "kv/base/digest.h"
#include "kv/base/error.h"

namespace cairn::core::internal {
namespace {

// Adds the extents of the base that contain [begin_bytes, end_bytes) of the chunk.
void AddBaseParts(const kv::Extents& base, uint64_t begin_bytes, uint64_t end_bytes,
                  std::vector<std::optional<kv::Extent>>& extents) {
  uint64_t extent_begin = 0;
  for (const kv::Extent& extent : base) {
    const uint64_t extent_end = extent_begin + extent.length_bytes;
    const uint64_t begin = std::max(begin_bytes, extent_begin);
    const uint64_t end = std::min(end_bytes, extent_end);
    if (begin < end) extents.push_back(extent.From(begin - extent_begin).First(end - begin));
    extent_begin = extent_end;
  }
}

}  // namespace

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
      AddBaseParts(base, begin_page * kv::kPageBytes,
                   std::min(end_page * kv::kPageBytes, length_bytes), ranges.extents);
    }
    if (ranges.extents.size() > MaxExtents(changed.size())) return std::nullopt;
    begin = end;
  }
  return ranges;
}

}  // namespace cairn::core::internal
