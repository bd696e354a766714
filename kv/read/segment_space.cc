// Each extent is kept with the first and the last step that use it. A byte is shared if, over all
// extents that contain it, these are not the same step.

#include "kv/read/segment_space.h"

#include <set>
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

/// Visits the beginnings and ends of all uses, in their order in the segment.
void AddUp(const SegmentUses& uses, SegmentSpace& space) {
  struct Edge {
    uint64_t offset = 0;
    bool is_begin = false;
    const Use* use = nullptr;
  };
  std::vector<Edge> edges;
  for (const auto& [begin, use] : uses) {
    edges.push_back({.offset = begin, .is_begin = true, .use = &use});
    edges.push_back({.offset = use.end, .is_begin = false, .use = &use});
  }
  std::ranges::sort(edges, {}, &Edge::offset);
  std::multiset<uint64_t> first_steps, last_steps;  // of the uses that contain the bytes
  uint64_t at = 0;
  for (const Edge& edge : edges) {
    if (!first_steps.empty()) {
      space.live_bytes += edge.offset - at;
      const bool is_shared = *first_steps.begin() != *last_steps.rbegin();
      if (is_shared) space.shared_bytes += edge.offset - at;
    }
    at = edge.offset;
    if (edge.is_begin) {
      first_steps.insert(edge.use->first_step);
      last_steps.insert(edge.use->last_step);
    } else {
      first_steps.erase(first_steps.find(edge.use->first_step));
      last_steps.erase(last_steps.find(edge.use->last_step));
    }
  }
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
