// `kv-dump space`: one row per part of the state, the largest first.

#include "core/inspect/space.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/state_dict/key_pattern.h"
#include "kv/read/segment_space.h"
#include "tools/common/exit_status.h"
#include "tools/common/json.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/table.h"
#include "tools/common/text.h"
#include "tools/dump/opened_store.h"
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
  core::SpaceUse sum;
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

void PrintTable(const DumpRun& run, const std::vector<core::SpaceUse>& uses,
                const core::SpaceUse& total) {
  Table table(run.out, {{"KEYS", Align::kLeft, true},
                        {"TENSORS", Align::kRight},
                        {"BYTES", Align::kRight},
                        {"SHARE", Align::kRight},
                        {"STORED", Align::kRight},
                        {"NEW IN STEP", Align::kRight},
                        {"CHUNKS", Align::kRight},
                        {"WITH DELTAS", Align::kRight},
                        {"COMPRESSED", Align::kRight}});
  const auto add = [&](std::string name, const core::SpaceUse& use) {
    const double share = total.logical_bytes == 0 ? 0
                                                  : 100.0 * static_cast<double>(use.logical_bytes) /
                                                        static_cast<double>(total.logical_bytes);
    table.Add({std::move(name), GroupedCount(use.tensors), HumanBytes(use.logical_bytes),
               fmt::format("{:.1f} %", share), HumanBytes(use.stored_bytes),
               HumanBytes(use.new_bytes), GroupedCount(use.chunks), GroupedCount(use.delta_chunks),
               GroupedCount(use.compressed_chunks)});
  };
  for (const core::SpaceUse& use : uses) add(EscapeText(use.prefix), use);
  add("(all)", total);
  table.Finish();
}

/// The bytes of segments.
struct SegmentBytes {
  uint64_t file = 0;
  uint64_t live = 0;
  uint64_t shared = 0;
  uint64_t dead = 0;
  uint64_t overhead = 0;

  void Add(const kv::SegmentSpace& space) {
    file += space.segment.file_bytes;
    live += space.live_bytes;
    shared += space.shared_bytes;
    dead += space.dead_bytes();
    overhead += space.overhead_bytes();
  }
  std::vector<JsonMember> Members() const {
    return {{"file_bytes", file},
            {"live_bytes", live},
            {"shared_bytes", shared},
            {"dead_bytes", dead},
            {"overhead_bytes", overhead}};
  }
};

void PrintSegments(const DumpRun& run, const OpenedStore& opened,
                   const std::vector<kv::SegmentSpace>& spaces) {
  SegmentBytes total;
  for (const kv::SegmentSpace& space : spaces) total.Add(space);
  if (run.json) {
    std::vector<JsonMember> head = {{"store", StoreText(opened)}};
    for (JsonMember& member : total.Members()) head.push_back(std::move(member));
    JsonList list(run.out, head, "segments");
    for (const kv::SegmentSpace& space : spaces) {
      SegmentBytes bytes;
      bytes.Add(space);
      Json row = {{"segment", JsonText(space.segment.name)},
                  {"segment_id", space.segment.segment_id}};
      for (JsonMember& member : bytes.Members()) row.Set(member.name, std::move(member.value));
      list.Add(row);
    }
    list.Finish();
    return;
  }
  if (spaces.empty()) PrintRemark(run, "No segments: nothing has been saved.");
  Table table(run.out, {{"SEGMENT"},
                        {"FILE", Align::kRight},
                        {"LIVE", Align::kRight},
                        {"SHARED", Align::kRight},
                        {"DEAD", Align::kRight},
                        {"", Align::kRight},
                        {"OVERHEAD", Align::kRight}});
  const auto add = [&](const std::string& name, const SegmentBytes& bytes) {
    table.Add({name, HumanBytes(bytes.file), HumanBytes(bytes.live), HumanBytes(bytes.shared),
               HumanBytes(bytes.dead), Percent(bytes.dead, bytes.file),
               HumanBytes(bytes.overhead)});
  };
  for (const kv::SegmentSpace& space : spaces) {
    SegmentBytes bytes;
    bytes.Add(space);
    add(EscapeText(space.segment.name), bytes);
  }
  add("(all)", total);
  table.Finish();
}

}  // namespace

Result<int> DumpSegmentSpace(const DumpRun& run, const std::string& store) {
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenWithoutStep(store, "space --segments"));
  CAIRN_TRY_ASSIGN(const auto snapshot, opened.store->kv().Latest());
  ProgressLine progress("reading records", ProgressUnit::kCount);
  CAIRN_TRY_ASSIGN(auto spaces, kv::MeasureSegments(*snapshot, progress.callback()));
  progress.Clear();
  std::ranges::stable_sort(spaces, std::ranges::greater(), &kv::SegmentSpace::dead_bytes);
  PrintSegments(run, opened, spaces);
  return kExitSuccess;
}

Result<int> DumpSpace(const DumpRun& run, const std::string& address,
                      const std::vector<std::string>& patterns, uint64_t depth) {
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenStore(address));
  CAIRN_TRY_ASSIGN(const kv::StepInfo step, FindStep(opened));
  CAIRN_TRY_ASSIGN(const auto selected, core::KeyPatterns::Parse(patterns));
  ProgressLine progress("reading records", ProgressUnit::kCount);
  CAIRN_TRY_ASSIGN(auto uses, core::MeasureSpace(opened.store->kv(), step.step, selected, depth,
                                                 progress.callback()));
  progress.Clear();
  std::ranges::stable_sort(uses, std::ranges::greater(), &core::SpaceUse::logical_bytes);
  if (run.json) {
    JsonList list(run.out, {{"store", StoreText(opened)}, {"step", step.step}}, "space");
    for (const core::SpaceUse& use : uses) list.Add(UseJson(use));
    list.Finish();
    return kExitSuccess;
  }
  if (uses.empty()) PrintRemark(run, fmt::format("No tensor of step {} matches.", step.step));
  PrintTable(run, uses, Sum(uses));
  return kExitSuccess;
}

}  // namespace cairn::tools
