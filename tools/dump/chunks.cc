// `kv-dump chunks`: one row per chunk.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>

#include "core/step/contents.h"
#include "kv/read/snapshot.h"
#include "tools/common/exit_status.h"
#include "tools/common/json.h"
#include "tools/common/quantities.h"
#include "tools/common/table.h"
#include "tools/common/text.h"
#include "tools/dump/contents_json.h"
#include "tools/dump/opened_store.h"
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

class ChunkPrinter {
 public:
  ChunkPrinter(const DumpRun& run, SegmentNames names)
      : table_(run.out, {{"FQN", Align::kLeft, true},
                         {"OFFSETS"},
                         {"SIZES"},
                         {"BYTES", Align::kRight},
                         {"DIGEST"},
                         {"ENCODING"},
                         {"SEGMENT"},
                         {"AT BYTE", Align::kRight},
                         {"SINCE STEP", Align::kRight}}),
        names_(std::move(names)) {}

  /// Adds a row; a chunk that has several extents or deltas is followed by one row for each.
  void Add(const core::TensorInfo& tensor, const core::ChunkInfo& chunk) {
    const kv::Extent& first = chunk.extents.front();
    const bool several = chunk.extents.size() > 1 || !chunk.deltas.empty();
    table_.Add({EscapeText(tensor.fqn), ShapeText(chunk.box.offsets), ShapeText(chunk.box.sizes),
                HumanBytes(chunk.length_bytes()), chunk.digest.ToHex(), EncodingOf(chunk),
                several ? Places(chunk) : names_.Name(first.segment_id),
                several ? "" : fmt::to_string(first.offset_bytes),
                fmt::to_string(chunk.since_step)});
    if (!several) return;
    chunk.stored().ForEach([&](const kv::Extent& extent) {
      const bool is_delta = std::ranges::find(chunk.deltas, extent) != chunk.deltas.end();
      AddExtent(extent, is_delta ? "delta" : "");
    });
  }
  void Finish() { table_.Finish(); }

  Json RowJson(const core::TensorInfo& tensor, const core::ChunkInfo& chunk) {
    Json row = {{"fqn", JsonText(tensor.fqn)},    {"offsets", chunk.box.offsets},
                {"sizes", chunk.box.sizes},       {"bytes", chunk.length_bytes()},
                {"digest", chunk.digest.ToHex()}, {"encoding", EncodingOf(chunk)}};
    if (chunk.extents.size() == 1) {
      row.Merge(ExtentJson(chunk.extents.front()));
    } else {
      row.Set("extents", ListJson(chunk.extents.all()));
    }
    if (!chunk.deltas.empty()) row.Set("deltas", ListJson(chunk.deltas));
    row.Set("since_step", chunk.since_step);
    if (const auto& values = chunk.statistics) {
      row.Set("statistics", Json{{"min", FloatJson(values->min)},
                                 {"max", FloatJson(values->max)},
                                 {"mean", FloatJson(values->mean)},
                                 {"zeros", values->zeros},
                                 {"nan", values->nans},
                                 {"inf", values->infs}});
    }
    return row;
  }

 private:
  static std::string EncodingOf(const core::ChunkInfo& chunk) {
    const bool is_compressed = chunk.stored().is_compressed();
    if (chunk.deltas.size() > (is_compressed ? 1 : 0)) return "delta";
    return is_compressed ? "compressed" : "raw";
  }

  static std::string Places(const core::ChunkInfo& chunk) {
    if (chunk.stored().is_compressed()) return Plural(chunk.deltas.size(), "delta");
    const std::string extents = Plural(chunk.extents.size(), "extent");
    if (chunk.deltas.empty()) return extents;
    return fmt::format("{}, {}", extents, Plural(chunk.deltas.size(), "delta"));
  }

  void AddExtent(const kv::Extent& extent, const std::string& encoding) {
    table_.Add({"", "", "", HumanBytes(extent.length_bytes), "", encoding,
                names_.Name(extent.segment_id), fmt::to_string(extent.offset_bytes), ""});
  }

  Json ListJson(std::span<const kv::Extent> extents) {
    Json list = Json::List();
    for (const kv::Extent& extent : extents) {
      Json part = ExtentJson(extent);
      part.Set("bytes", extent.length_bytes);
      list.Append(std::move(part));
    }
    return list;
  }

  Json ExtentJson(const kv::Extent& extent) {
    return {{"segment", names_.Name(extent.segment_id)},
            {"segment_id", extent.segment_id},
            {"offset_bytes", extent.offset_bytes}};
  }

  Table table_;
  SegmentNames names_;
};

}  // namespace

Result<int> DumpChunks(const DumpRun& run, const std::string& address,
                       const std::vector<std::string>& patterns) {
  CAIRN_TRY_ASSIGN(const core::KeyPatterns parsed, core::KeyPatterns::Parse(patterns));
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenStore(address));
  CAIRN_TRY_ASSIGN(const auto snapshot, opened.store->kv().Latest());
  CAIRN_TRY_ASSIGN(const kv::StepInfo step, snapshot->FindStep(opened.address.step));
  ChunkPrinter printer(run, SegmentNames(*snapshot, step));
  std::optional<JsonList> list;
  if (run.json) {
    list.emplace(run.out,
                 std::vector<JsonMember>{{"store", StoreText(opened)}, {"step", step.step}},
                 "chunks");
  }
  uint64_t chunk_count = 0;
  const auto print = [&](const core::TensorInfo& tensor, const core::ChunkInfo& chunk) {
    ++chunk_count;
    if (list) {
      list->Add(printer.RowJson(tensor, chunk));
    } else {
      printer.Add(tensor, chunk);
    }
  };
  auto read = ForEachTensorGroup(
      opened, step, parsed, [&](std::span<const core::TensorInfo> tensors) -> Result<void> {
        return opened.store->ForEachChunk(
            step, tensors, [&](size_t index, const core::ChunkInfo& chunk) -> Result<void> {
              print(tensors[index], chunk);
              return {};
            });
      });
  if (!read) {
    if (list) list->Abandon(read.error());
    printer.Finish();  // the rows before the damage are useful
    return Fail(std::move(read).error());
  }
  if (list) {
    list->Finish();
  } else {
    printer.Finish();
    if (chunk_count == 0) PrintRemark(run, "No chunks: no tensor with elements matches.");
  }
  return kExitSuccess;
}

}  // namespace cairn::tools
