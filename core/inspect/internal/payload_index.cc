#include "core/inspect/internal/payload_index.h"

#include <algorithm>
#include <iterator>

#include "core/step/contents.h"

namespace cairn::core::internal {
namespace {

const ScrubItem* FindConflict(const ScrubItem& known, const ChunkInfo& chunk) {
  const bool same = known.chunk.extents == chunk.extents && known.chunk.deltas == chunk.deltas &&
                    known.chunk.digest == chunk.digest;
  return same ? nullptr : &known;
}

bool BeginsBefore(const ScrubItem& a, const ScrubItem& b) {
  const auto location = [](const ScrubItem& item) {
    const kv::Extent& extent = item.chunk.extents.front();
    return std::pair(extent.segment_id, extent.offset_bytes);
  };
  return location(a) < location(b);
}

// True if `extent` has its pages and their digests where `before` would have them if it were
// longer.
bool IsContinuationOf(const kv::Extent& before, const kv::Extent& extent) {
  const uint64_t bytes = extent.offset_bytes - before.offset_bytes;
  return extent.segment_id == before.segment_id && bytes % kv::kPageBytes == 0 &&
         extent.page_digests_offset_bytes ==
             before.page_digests_offset_bytes + 8 * (bytes / kv::kPageBytes);
}

// Removes from `item` the pages that are read with `before`, which begins no later. Returns false
// if no page is left.
bool RemoveOverlap(const kv::Extent& before, ScrubItem& item) {
  const kv::Extent& extent = item.chunk.extents.front();
  const uint64_t read_end = before.offset_bytes + before.length_bytes;
  if (!IsContinuationOf(before, extent) || extent.offset_bytes >= read_end) return true;
  const uint64_t read = read_end - extent.offset_bytes;
  if (read >= extent.length_bytes) return false;
  item.first_page += read / kv::kPageBytes;
  item.chunk.extents = extent.From(read / kv::kPageBytes * kv::kPageBytes);
  return true;
}

}  // namespace

const ScrubItem* PayloadIndex::Add(uint64_t step, std::string_view fqn, const ChunkInfo& chunk) {
  if (!chunk.deltas.empty()) {
    std::vector<Location> locations;
    chunk.stored().ForEach([&](const kv::Extent& e) { locations.push_back(LocationOf(e)); });
    const auto [at, added] = with_deltas_.try_emplace(
        std::move(locations), ScrubItem{step, std::string(fqn), chunk, ScrubItem::Part::kDeltas});
    return added ? nullptr : FindConflict(at->second, chunk);
  }
  if (chunk.extents.size() == 1) {
    const auto [at, added] = contiguous_.try_emplace(LocationOf(chunk.extents.front()),
                                                     ScrubItem{step, std::string(fqn), chunk});
    return added ? nullptr : FindConflict(at->second, chunk);
  }
  std::vector<Location> locations;
  std::ranges::transform(chunk.extents, std::back_inserter(locations), LocationOf);
  const auto [at, added] = scattered_.try_emplace(
      std::move(locations),
      ScrubItem{step, std::string(fqn), chunk, ScrubItem::Part::kPageDigests});
  return added ? nullptr : FindConflict(at->second, chunk);
}

std::vector<ScrubItem> PayloadIndex::ExtentItems() const {
  std::vector<ScrubItem> items;
  for (const auto& [locations, chunk_item] : scattered_) {
    uint64_t first_page = 0;
    ScrubItem without_extents = chunk_item;
    without_extents.part = ScrubItem::Part::kExtent;
    without_extents.chunk.extents = {};
    for (const kv::Extent& extent : chunk_item.chunk.extents) {
      ScrubItem& item = items.emplace_back(without_extents);
      item.chunk.extents = extent;
      item.first_page = first_page;
      first_page += kv::PageCount(extent.length_bytes);
    }
  }
  std::ranges::stable_sort(items, BeginsBefore);
  return items;
}

std::vector<ScrubItem> PayloadIndex::Take() {
  std::vector<ScrubItem> items;
  items.reserve(contiguous_.size() + scattered_.size());
  kv::Extent farthest;  // the extent in the current segment that ends last
  const auto add = [&](ScrubItem item) {
    const kv::Extent extent = item.chunk.extents.front();
    if (item.part == ScrubItem::Part::kExtent && !RemoveOverlap(farthest, item)) return;
    items.push_back(std::move(item));
    const bool is_farther =
        extent.segment_id != farthest.segment_id ||
        extent.offset_bytes + extent.length_bytes > farthest.offset_bytes + farthest.length_bytes;
    if (is_farther) farthest = extent;
  };
  auto contiguous = contiguous_.begin();
  for (ScrubItem& item : ExtentItems()) {
    // At the same location, a complete chunk precedes an extent of another chunk.
    for (; contiguous != contiguous_.end() && !BeginsBefore(item, contiguous->second);
         ++contiguous) {
      add(std::move(contiguous->second));
    }
    add(std::move(item));
  }
  for (; contiguous != contiguous_.end(); ++contiguous) add(std::move(contiguous->second));
  for (auto& [locations, item] : scattered_) items.push_back(std::move(item));
  for (auto& [locations, item] : with_deltas_) items.push_back(std::move(item));
  contiguous_.clear();
  scattered_.clear();
  with_deltas_.clear();
  return items;
}

}  // namespace cairn::core::internal
