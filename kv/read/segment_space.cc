// Each extent is kept with the first and the last step that use it. A byte is shared if, over all
// extents that contain it, these are not the same step.

#include "kv/read/segment_space.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "kv/base/extents.h"
#include "kv/base/key.h"
#include "kv/root/internal/kv_records.h"

namespace cairn::kv {
namespace {

struct Use {
  uint64_t end = 0;         // in the segment
  uint64_t first_step = 0;  // as positions in the list of steps
  uint64_t last_step = 0;
};

/// The uses of one segment, by the offset at which they begin.
using SegmentUses = std::unordered_multimap<uint64_t, Use>;

void AddUse(const Extent& extent, uint64_t step, SegmentUses& uses) {
  const uint64_t end = extent.offset_bytes + extent.length_bytes;
  const auto [from, to] = uses.equal_range(extent.offset_bytes);
  for (auto at = from; at != to; ++at) {
    if (at->second.end != end) continue;
    at->second.last_step = step;  // steps are added in their order
    return;
  }
  uses.emplace(extent.offset_bytes, Use{.end = end, .first_step = step, .last_step = step});
}

/// Adds the bytes from `begin` to `end`, which the same uses contain.
void AddRegion(uint64_t begin, uint64_t end, const std::multimap<uint64_t, Use>& open,
               SegmentSpace& space) {
  if (open.empty() || begin == end) return;
  uint64_t first_step = UINT64_MAX;
  uint64_t last_step = 0;
  for (const auto& [use_end, use] : open) {
    first_step = std::min(first_step, use.first_step);
    last_step = std::max(last_step, use.last_step);
  }
  space.live_bytes += end - begin;
  if (first_step != last_step) space.shared_bytes += end - begin;
}

void AddUp(const SegmentUses& uses, SegmentSpace& space) {
  std::vector<std::pair<uint64_t, Use>> sorted(uses.begin(), uses.end());
  std::ranges::sort(sorted, {}, &std::pair<uint64_t, Use>::first);
  std::multimap<uint64_t, Use> open;  // by end
  uint64_t at = 0;
  const auto advance = [&](uint64_t to) {
    while (!open.empty() && open.begin()->first <= to) {
      const uint64_t end = open.begin()->first;
      AddRegion(at, end, open, space);
      at = end;
      open.erase(open.begin());
    }
    AddRegion(at, to, open, space);
    at = to;
  };
  for (const auto& [begin, use] : sorted) {
    advance(begin);
    open.emplace(use.end, use);
  }
  while (!open.empty()) advance(open.begin()->first);
}

}  // namespace

Result<std::vector<SegmentSpace>> MeasureSegments(
    const Snapshot& snapshot, const std::function<void(uint64_t, uint64_t)>& progress) {
  constexpr uint64_t kReported = 1024;  // records at a time
  std::unordered_map<uint64_t, SegmentUses> uses;
  CAIRN_TRY_ASSIGN(const std::vector<StepInfo> steps, snapshot.Steps());
  uint64_t records = 0, all_records = 0;
  for (const StepInfo& step : steps) all_records += step.chunk_count;
  for (uint64_t i = 0; i < steps.size(); ++i) {
    CAIRN_TRY(
        snapshot.Scan(Column::kChunks, steps[i], "",
                      [&](std::string_view, std::span<const std::byte> record) -> Result<bool> {
                        if (++records % kReported == 0 && progress) progress(records, all_records);
                        auto extents = internal::DecodeChunkExtents(record);
                        if (!extents)
                          return Fail(std::move(extents).error().WithStep(steps[i].step));
                        extents->ForEach([&](const Extent& extent) {
                          if (extent.length_bytes > 0) AddUse(extent, i, uses[extent.segment_id]);
                        });
                        return true;
                      }));
  }
  CAIRN_TRY_ASSIGN(std::vector<SegmentInfo> segments, snapshot.Segments());
  std::vector<SegmentSpace> spaces;
  for (SegmentInfo& segment : segments) {
    const uint64_t id = segment.segment_id;
    spaces.push_back({.segment = std::move(segment)});
    AddUp(uses[id], spaces.back());
  }
  return spaces;
}

}  // namespace cairn::kv
