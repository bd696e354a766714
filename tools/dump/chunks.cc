// `kv-dump chunks`: one row per chunk.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/step/contents.h"
#include "kv/read/snapshot.h"
#include "tools/common/exit_status.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"
#include "tools/dump/contents_json.h"
#include "tools/dump/opened_store.h"
#include "tools/dump/rows.h"
#include "tools/dump/statistics_text.h"
#include "tools/dump/verbs.h"

namespace cairn::tools {
namespace {

/// Names of the segments that a step uses, by id.
class SegmentNames {
 public:
  SegmentNames(const kv::Snapshot& snapshot, const kv::StepInfo& step) {
    const auto segments = snapshot.SegmentsOf(step);
    if (!segments) return;
    for (const kv::SegmentInfo& segment : *segments) {
      names_.emplace(segment.segment_id, EscapeText(segment.name));
    }
  }
  /// Returns "unknown-ID" for a segment of which the step has no sound record, so that the row is
  /// still printed.
  std::string Name(uint64_t segment_id) const {
    const auto found = names_.find(segment_id);
    return found != names_.end() ? found->second : fmt::format("unknown-{}", segment_id);
  }

 private:
  std::unordered_map<uint64_t, std::string> names_;
};

std::string EncodingOf(const core::ChunkInfo& chunk) {
  const bool is_compressed = chunk.stored().is_compressed();
  if (chunk.deltas.size() > (is_compressed ? 1 : 0)) return "delta";
  return is_compressed ? "compressed" : "raw";
}

std::string Places(const core::ChunkInfo& chunk) {
  if (chunk.stored().is_compressed()) return Plural(chunk.deltas.size(), "delta");
  const std::string extents = Plural(chunk.extents.size(), "extent");
  if (chunk.deltas.empty()) return extents;
  return fmt::format("{}, {}", extents, Plural(chunk.deltas.size(), "delta"));
}

bool HasSeveralPlaces(const core::ChunkInfo& chunk) {
  return chunk.extents.size() > 1 || !chunk.deltas.empty();
}

std::vector<Cell> ChunkCells(const core::TensorInfo& tensor, const core::ChunkInfo& chunk,
                             const SegmentNames& names) {
  const kv::Extent& first = chunk.extents.front();
  const bool several = HasSeveralPlaces(chunk);
  return {EscapeText(tensor.fqn),
          ShapeText(chunk.box.offsets),
          ShapeText(chunk.box.sizes),
          HumanBytes(chunk.length_bytes()),
          chunk.digest.ToHex(),
          EncodingOf(chunk),
          several ? Places(chunk) : names.Name(first.segment_id),
          several ? "" : fmt::to_string(first.offset_bytes),
          fmt::to_string(chunk.since_step)};
}

/// Adds one row to the table for each place of a chunk that has several.
void AddPlaces(const core::ChunkInfo& chunk, const SegmentNames& names, Rows& rows) {
  chunk.stored().ForEach([&](const kv::Extent& extent) {
    const bool is_delta = std::ranges::find(chunk.deltas, extent) != chunk.deltas.end();
    rows.AddToTable({"", "", "", HumanBytes(extent.length_bytes), "", is_delta ? "delta" : "",
                     names.Name(extent.segment_id), fmt::to_string(extent.offset_bytes), ""});
  });
}

Json ExtentJson(const kv::Extent& extent, const SegmentNames& names) {
  return {{"segment", names.Name(extent.segment_id)},
          {"segment_id", extent.segment_id},
          {"offset_bytes", extent.offset_bytes}};
}

Json ExtentsJson(std::span<const kv::Extent> extents, const SegmentNames& names) {
  Json list = Json::array();
  for (const kv::Extent& extent : extents) {
    list.push_back(ExtentJson(extent, names));
    list.back()["bytes"] = extent.length_bytes;
  }
  return list;
}

Json ChunkJson(const core::TensorInfo& tensor, const core::ChunkInfo& chunk,
               const SegmentNames& names) {
  Json row = {{"fqn", JsonText(tensor.fqn)},    {"offsets", chunk.box.offsets},
              {"sizes", chunk.box.sizes},       {"bytes", chunk.length_bytes()},
              {"digest", chunk.digest.ToHex()}, {"page_bytes", chunk.extents.page_bytes()},
              {"encoding", EncodingOf(chunk)}};
  if (chunk.extents.size() == 1) {
    row.update(ExtentJson(chunk.extents.front(), names));
  } else {
    row["extents"] = ExtentsJson(chunk.extents.all(), names);
  }
  if (!chunk.deltas.empty()) row["deltas"] = ExtentsJson(chunk.deltas, names);
  row["since_step"] = chunk.since_step;
  if (chunk.statistics) row["statistics"] = ValuesJson(*chunk.statistics);
  return row;
}

}  // namespace

Result<int> DumpChunks(const DumpRun& run) {
  CAIRN_TRY_ASSIGN(const core::KeyPatterns patterns, core::KeyPatterns::Parse(run.patterns));
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenStore(run.address));
  CAIRN_TRY_ASSIGN(const auto snapshot, opened.store->kv().Latest());
  CAIRN_TRY_ASSIGN(const kv::StepInfo step, snapshot->FindStep(opened.address.step));
  const SegmentNames names(*snapshot, step);
  Rows rows(run,
            {Flexible("FQN"), Left("OFFSETS"), Left("SIZES"), Right("BYTES"), Left("DIGEST"),
             Left("ENCODING"), Left("SEGMENT"), Right("AT BYTE"), Right("SINCE STEP")},
            {{"store", StoreText(opened)}, {"step", step.step}}, "chunks");
  const auto add = [&](const core::TensorInfo& tensor, const core::ChunkInfo& chunk) {
    rows.Add([&] { return ChunkCells(tensor, chunk, names); },
             [&] { return ChunkJson(tensor, chunk, names); });
    if (!run.json && HasSeveralPlaces(chunk)) AddPlaces(chunk, names, rows);
    return Result<void>();
  };
  CAIRN_TRY(rows.Finish(ForEachTensorGroup(
      opened, step, patterns,
      [&](std::span<const core::TensorInfo> tensors) -> Result<void> {
        return opened.store->ForEachChunk(
            step, tensors,
            [&](size_t index, const core::ChunkInfo& chunk) { return add(tensors[index], chunk); });
      },
      /*has_values=*/true)));
  if (rows.is_empty()) {
    PrintRemark(run, "No chunks: no tensor with elements and no long value matches.");
  }
  return kExitSuccess;
}

}  // namespace cairn::tools
