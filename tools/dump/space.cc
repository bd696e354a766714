// `kv-dump space`: one row per part of the state, the largest first.

#include "core/inspect/space.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/state_dict/key_pattern.h"
#include "kv/read/segment_space.h"
#include "tools/common/exit_status.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"
#include "tools/dump/opened_store.h"
#include "tools/dump/rows.h"
#include "tools/dump/verbs.h"

namespace cairn::tools {
namespace {

Json UseJson(const core::SpaceUse& use) {
  return {{"prefix", JsonText(use.prefix)},
          {"tensors", use.tensors},
          {"chunks", use.chunks},
          {"delta_chunks", use.delta_chunks},
          {"compressed_chunks", use.compressed_chunks},
          {"logical_bytes", use.logical_bytes},
          {"stored_bytes", use.stored_bytes},
          {"new_bytes", use.new_bytes}};
}

core::SpaceUse Sum(const std::vector<core::SpaceUse>& uses) {
  core::SpaceUse sum{.prefix = "(all)"};
  for (const core::SpaceUse& use : uses) {
    sum.tensors += use.tensors;
    sum.chunks += use.chunks;
    sum.delta_chunks += use.delta_chunks;
    sum.compressed_chunks += use.compressed_chunks;
    sum.logical_bytes += use.logical_bytes;
    sum.stored_bytes += use.stored_bytes;
    sum.new_bytes += use.new_bytes;
  }
  return sum;
}

std::vector<Cell> UseCells(const core::SpaceUse& use, uint64_t all_bytes) {
  return {EscapeText(use.prefix),
          GroupedCount(use.tensors),
          HumanBytes(use.logical_bytes),
          Percent(use.logical_bytes, all_bytes),
          HumanBytes(use.stored_bytes),
          HumanBytes(use.new_bytes),
          GroupedCount(use.chunks),
          GroupedCount(use.delta_chunks),
          GroupedCount(use.compressed_chunks)};
}

Json SegmentBytesJson(const kv::SegmentSpace& space) {
  return {{"file_bytes", space.segment.file_bytes},
          {"live_bytes", space.live_bytes},
          {"shared_bytes", space.shared_bytes},
          {"dead_bytes", space.dead_bytes()},
          {"overhead_bytes", space.overhead_bytes()}};
}

std::vector<Cell> SpaceCells(const kv::SegmentSpace& space) {
  return {EscapeText(space.segment.name),    HumanBytes(space.segment.file_bytes),
          HumanBytes(space.live_bytes),      HumanBytes(space.shared_bytes),
          HumanBytes(space.dead_bytes()),    Percent(space.dead_bytes(), space.segment.file_bytes),
          HumanBytes(space.overhead_bytes())};
}

/// Prints what each segment contains: bytes that steps use, that several steps use, and that none
/// uses.
Result<int> DumpSegmentSpace(const DumpRun& run) {
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenWithoutStep(run.address, "space --segments"));
  CAIRN_TRY_ASSIGN(const auto snapshot, opened.store->kv().Latest());
  ProgressLine progress("reading records", ProgressUnit::kCount);
  CAIRN_TRY_ASSIGN(auto spaces, kv::MeasureSegments(*snapshot, progress.callback()));
  progress.Clear();
  std::ranges::stable_sort(spaces, std::ranges::greater(), &kv::SegmentSpace::dead_bytes);
  kv::SegmentSpace total{.segment = {.name = "(all)"}};
  for (const kv::SegmentSpace& space : spaces) {
    total.segment.file_bytes += space.segment.file_bytes;
    total.segment.payload_bytes += space.segment.payload_bytes;
    total.live_bytes += space.live_bytes;
    total.shared_bytes += space.shared_bytes;
  }
  if (spaces.empty()) PrintRemark(run, "No segments: nothing has been saved.");
  Json head = {{"store", StoreText(opened)}};
  head.update(SegmentBytesJson(total));
  Rows rows(run,
            {Left("SEGMENT"), Right("FILE"), Right("LIVE"), Right("SHARED"), Right("DEAD"),
             Right(""), Right("OVERHEAD")},
            head, "segments");
  for (const kv::SegmentSpace& space : spaces) {
    rows.Add([&] { return SpaceCells(space); },
             [&] {
               Json row = {{"segment", JsonText(space.segment.name)},
                           {"segment_id", space.segment.segment_id}};
               row.update(SegmentBytesJson(space));
               return row;
             });
  }
  rows.AddToTable(SpaceCells(total));
  CAIRN_TRY(rows.Finish());
  return kExitSuccess;
}

}  // namespace

Result<int> DumpSpace(const DumpRun& run) {
  if (run.segments) return DumpSegmentSpace(run);
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenStore(run.address));
  CAIRN_TRY_ASSIGN(const kv::StepInfo step, FindStep(opened));
  CAIRN_TRY_ASSIGN(const auto patterns, core::KeyPatterns::Parse(run.patterns));
  ProgressLine progress("reading records", ProgressUnit::kCount);
  CAIRN_TRY_ASSIGN(auto uses, core::MeasureSpace(opened.store->kv(), step.step, patterns, run.depth,
                                                 progress.callback()));
  progress.Clear();
  std::ranges::stable_sort(uses, std::ranges::greater(), &core::SpaceUse::logical_bytes);
  const core::SpaceUse total = Sum(uses);
  if (uses.empty()) PrintRemark(run, fmt::format("No tensor of step {} matches.", step.step));
  Rows rows(run,
            {Flexible("KEYS"), Right("TENSORS"), Right("BYTES"), Right("SHARE"), Right("STORED"),
             Right("NEW IN STEP"), Right("CHUNKS"), Right("WITH DELTAS"), Right("COMPRESSED")},
            {{"store", StoreText(opened)}, {"step", step.step}}, "space");
  for (const core::SpaceUse& use : uses) {
    rows.Add([&] { return UseCells(use, total.logical_bytes); }, [&] { return UseJson(use); });
  }
  rows.AddToTable(UseCells(total, total.logical_bytes));
  CAIRN_TRY(rows.Finish());
  return kExitSuccess;
}

}  // namespace cairn::tools
