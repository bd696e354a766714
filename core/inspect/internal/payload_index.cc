// Distinct payload of steps that share most of it.

#include "core/inspect/internal/payload_index.h"

#include <algorithm>
#include <iterator>

#include "core/step/contents.h"

namespace cairn::core::internal {
namespace {

const ScrubItem* FindConflict(const ScrubItem& known, const ChunkInfo& chunk) {
  const bool same = known.chunk.extents == chunk.extents && known.chunk.digest == chunk.digest;
  return same ? nullptr : &known;
}

bool BeginsBefore(const ScrubItem& a, const ScrubItem& b) {
  const auto place = [](const ScrubItem& item) {
    const kv::Extent& extent = item.chunk.extents.front();
    return std::pair(extent.segment_id, extent.offset_bytes);
  };
  return place(a) < place(b);
}

// True if `run` has its pages and their digests where `before`, drawn out, would have them.
bool IsOfSameLayout(const kv::Extent& before, const kv::Extent& run) {
  const uint64_t bytes = run.offset_bytes - before.offset_bytes;
  return run.segment_id == before.segment_id && bytes % kv::kPageBytes == 0 &&
         run.page_digests_offset_bytes == before.page_digests_offset_bytes + 8 * (bytes / kv::kPageBytes);
}

// Leaves out of `run` what `before`, which begins no later, has read. False: all of it.
bool CutOff(const kv::Extent& before, ScrubItem& run) {
  const kv::Extent& extent = run.chunk.extents.front();
  const uint64_t read_end = before.offset_bytes + before.length_bytes;
  if (!IsOfSameLayout(before, extent) || extent.offset_bytes >= read_end) return true;
  const uint64_t read = read_end - extent.offset_bytes;
  if (read >= extent.length_bytes) return false;
  run.first_page += read / kv::kPageBytes;
  run.chunk.extents = extent.From(read / kv::kPageBytes * kv::kPageBytes);
  return true;
}

}  // namespace

const ScrubItem* PayloadIndex::Add(uint64_t step, std::string_view fqn, const ChunkInfo& chunk) {
  if (chunk.extents.size() == 1) {
    const auto [at, added] = whole_.try_emplace(PlaceOf(chunk.extents.front()),
                                                ScrubItem{step, std::string(fqn), chunk});
    return added ? nullptr : FindConflict(at->second, chunk);
  }
  std::vector<Place> places;
  std::ranges::transform(chunk.extents, std::back_inserter(places), PlaceOf);
  const auto [at, added] = scattered_.try_emplace(
      std::move(places), ScrubItem{step, std::string(fqn), chunk, ScrubItem::Part::kPageDigests});
  return added ? nullptr : FindConflict(at->second, chunk);
}

std::vector<ScrubItem> PayloadIndex::TakeRuns() const {
  std::vector<ScrubItem> runs;
  for (const auto& [places, item] : scattered_) {
    uint64_t first_page = 0;
    for (const kv::Extent& extent : item.chunk.extents) {
      ScrubItem& run = runs.emplace_back(item);
      run.part = ScrubItem::Part::kRun;
      run.chunk.extents = extent;
      run.first_page = first_page;
      first_page += kv::PageCount(extent.length_bytes);
    }
  }
  std::ranges::stable_sort(runs, BeginsBefore);
  return runs;
}

std::vector<ScrubItem> PayloadIndex::Take() {
  std::vector<ScrubItem> items;
  items.reserve(whole_.size() + scattered_.size());
  kv::Extent read;  // reaches farthest of those so far in its segment
  const auto add = [&](ScrubItem item) {
    const kv::Extent extent = item.chunk.extents.front();
    if (item.part == ScrubItem::Part::kRun && !CutOff(read, item)) return;
    items.push_back(std::move(item));
    const bool farther =
        extent.segment_id != read.segment_id ||
        extent.offset_bytes + extent.length_bytes > read.offset_bytes + read.length_bytes;
    if (farther) read = extent;
  };
  auto whole = whole_.begin();
  for (ScrubItem& run : TakeRuns()) {
    // Those that begin in the same place come before it: all of a chunk before a part of it.
    for (; whole != whole_.end() && !BeginsBefore(run, whole->second); ++whole) {
      add(std::move(whole->second));
    }
    add(std::move(run));
  }
  for (; whole != whole_.end(); ++whole) add(std::move(whole->second));
  for (auto& [places, item] : scattered_) items.push_back(std::move(item));
  whole_.clear();
  scattered_.clear();
  return items;
}

}  // namespace cairn::core::internal
