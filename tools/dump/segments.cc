// `kv-dump segments`: one row per segment file.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_set>
#include <vector>

#include "kv/base/step_info.h"
#include "kv/read/snapshot.h"
#include "tools/common/exit_status.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"
#include "tools/dump/opened_store.h"
#include "tools/dump/rows.h"
#include "tools/dump/verbs.h"

namespace cairn::tools {
namespace {

struct SegmentUse {
  uint64_t steps = 0;
  uint64_t latest_bytes = 0;  // bytes that the latest step uses
};

Result<std::map<uint64_t, SegmentUse>> CountUse(const kv::Snapshot& snapshot) {
  CAIRN_TRY_ASSIGN(const std::vector<kv::Usage> usage, snapshot.SegmentUsage());
  if (usage.empty()) return std::map<uint64_t, SegmentUse>();
  CAIRN_TRY_ASSIGN(const kv::StepInfo latest, snapshot.FindStep(std::nullopt));
  std::map<uint64_t, SegmentUse> uses;
  for (const kv::Usage& entry : usage) {
    SegmentUse& use = uses[entry.segment_id];
    use.steps += 1;
    if (entry.generation == latest.generation) use.latest_bytes += entry.live_bytes;
  }
  return uses;
}

/// Calls `visit` with the segments in the order of the first step that uses them, so that the first
/// ones are known before the tables of all steps are read.
template <typename Visit>
Result<void> ForEachSegment(const kv::Snapshot& snapshot, const Visit& visit) {
  CAIRN_TRY_ASSIGN(const std::vector<kv::StepInfo> steps, snapshot.Steps());
  std::unordered_set<uint64_t> known;
  for (const kv::StepInfo& step : steps) {
    CAIRN_TRY_ASSIGN(auto segments, snapshot.FurtherSegmentsOf(step, known));
    std::ranges::sort(segments, [](const auto& a, const auto& b) {
      return std::tie(a.step, a.rank, a.name) < std::tie(b.step, b.rank, b.name);
    });
    for (const kv::SegmentInfo& segment : segments) visit(segment);
  }
  return {};
}

std::vector<Cell> SegmentCells(const kv::SegmentInfo& segment, const SegmentUse& use) {
  return {EscapeText(segment.name),       fmt::to_string(segment.step),
          fmt::to_string(segment.rank),   GroupedCount(segment.chunk_count),
          HumanBytes(segment.file_bytes), HumanBytes(segment.payload_bytes),
          Plural(use.steps, "step"),      Percent(use.latest_bytes, segment.payload_bytes)};
}

Json SegmentJson(const kv::SegmentInfo& segment, const SegmentUse& use) {
  return {{"segment", JsonText(segment.name)},
          {"segment_id", segment.segment_id},
          {"step", segment.step},
          {"rank", segment.rank},
          {"chunks", segment.chunk_count},
          {"file_bytes", segment.file_bytes},
          {"payload_bytes", segment.payload_bytes},
          {"used_by_steps", use.steps},
          {"used_by_latest_bytes", use.latest_bytes}};
}

}  // namespace

Result<int> DumpSegments(const DumpRun& run) {
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenWithoutStep(run.address, "segments"));
  CAIRN_TRY_ASSIGN(const auto snapshot, opened.store->kv().Latest());
  CAIRN_TRY_ASSIGN(auto uses, CountUse(*snapshot));
  Rows rows(run,
            {Left("SEGMENT"), Right("STEP"), Right("RANK"), Right("CHUNKS"), Right("FILE"),
             Right("PAYLOAD"), Right("USED BY"), Right("LIVE IN LATEST")},
            {{"store", StoreText(opened)}}, "segments");
  CAIRN_TRY(rows.Finish(ForEachSegment(*snapshot, [&](const kv::SegmentInfo& segment) {
    const SegmentUse& use = uses[segment.segment_id];
    rows.Add([&] { return SegmentCells(segment, use); }, [&] { return SegmentJson(segment, use); });
  })));
  if (rows.is_empty()) PrintRemark(run, "No segments: nothing has been saved.");
  return kExitSuccess;
}

}  // namespace cairn::tools
