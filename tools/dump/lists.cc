// `kv-dump steps`, `keys`, `chunks` and `segments`: a row for each.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "core/state_dict/key_pattern.h"
#include "core/step/contents.h"
#include "kv/snapshot.h"
#include "kv/step_info.h"
#include "tools/common/table.h"
#include "tools/common/text.h"
#include "tools/dump/verbs.h"

namespace cairn::tools::internal {
namespace {

Json HeadJson(const OpenedStore& opened) {
  return {{"store", JsonText(AddressDirectory(opened.address.store))}};
}

Json HeadJson(const OpenedStore& opened, const kv::StepInfo& step) {
  Json head = HeadJson(opened);
  head["step"] = step.step;
  return head;
}

void NoteNothing(const DumpRun& run, std::string_view text) {
  if (!run.json) run.out->WriteLine(run.out->Styled(Style::kDim, text));
}

void NoteNoMatch(const DumpRun& run, const core::Contents& contents) {
  NoteNothing(run, fmt::format("No key of step {} matches.", contents.step.step));
}

Json TensorJson(const core::TensorInfo& tensor) {
  Json json = {{"fqn", JsonText(tensor.fqn)},
               {"kind", "tensor"},
               {"dtype", schema::DTypeName(tensor.dtype)},
               {"shape", tensor.shape},
               {"bytes", tensor.nbytes},
               {"chunks", tensor.chunk_count}};
  if (tensor.alias_of) {
    json["alias_of"] = JsonText(*tensor.alias_of);
    json["alias_offset_bytes"] = tensor.alias_offset_bytes;
    json["alias_strides"] = tensor.alias_strides;
  }
  if (tensor.hidden) json["hidden"] = true;
  return json;
}

Json ValueInfoJson(const core::ValueInfo& value) {
  return {{"fqn", JsonText(value.fqn)},
          {"kind", "value"},
          {"type", ValueKindName(value.value)},
          {"value", ValueJson(value.value)}};
}

std::string TensorNote(const core::TensorInfo& tensor) {
  if (tensor.alias_of) return fmt::format("shares {}", EscapeText(*tensor.alias_of));
  if (tensor.hidden) return "storage that others share";
  return "";
}

/// Calls one of the functions for each key, in key order.
template <typename OnTensor, typename OnValue>
void ForEachKey(const core::Contents& contents, OnTensor on_tensor, OnValue on_value) {
  auto value = contents.values.begin();
  for (const core::TensorInfo& tensor : contents.tensors) {
    for (; value != contents.values.end() && value->fqn < tensor.fqn; ++value) on_value(*value);
    on_tensor(tensor);
  }
  for (; value != contents.values.end(); ++value) on_value(*value);
}

Result<core::Contents> ListKeys(const OpenedStore& opened,
                                const std::vector<std::string>& patterns) {
  CAIRN_TRY_ASSIGN(const core::KeyPatterns parsed, core::KeyPatterns::Parse(patterns));
  return opened.store->List(opened.address.step, parsed);
}

/// Names of segments by id, looked up once each.
class SegmentNames {
 public:
  explicit SegmentNames(std::shared_ptr<const kv::Snapshot> snapshot)
      : snapshot_(std::move(snapshot)) {}
  /// A segment that the index does not know has a made-up name: the row must not be lost for it.
  const std::string& Name(uint64_t segment_id) {
    auto [place, is_new] = names_.try_emplace(segment_id);
    if (is_new) {
      const auto segment = snapshot_->FindSegment(segment_id);
      place->second = segment ? EscapeText(segment->name) : fmt::format("unknown-{}", segment_id);
    }
    return place->second;
  }

 private:
  std::shared_ptr<const kv::Snapshot> snapshot_;
  std::map<uint64_t, std::string> names_;
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

  /// A row; of a chunk in several extents one for each below it.
  void Add(const core::TensorInfo& tensor, const core::ChunkInfo& chunk) {
    const kv::Extent& first = chunk.extents.front();
    const bool several = chunk.extents.size() > 1;
    table_.Add({EscapeText(tensor.fqn), ShapeText(chunk.box.offsets), ShapeText(chunk.box.sizes),
                HumanBytes(chunk.length_bytes()), chunk.digest.ToHex(), "raw",
                several ? Plural(chunk.extents.size(), "extent") : names_.Name(first.segment_id),
                several ? "" : fmt::to_string(first.offset_bytes),
                fmt::to_string(chunk.since_step)});
    if (!several) return;
    for (const kv::Extent& extent : chunk.extents) {
      table_.Add({"", "", "", HumanBytes(extent.length_bytes), "", "",
                  names_.Name(extent.segment_id), fmt::to_string(extent.offset_bytes), ""});
    }
  }
  void Finish() { table_.Finish(); }

  Json RowJson(const core::TensorInfo& tensor, const core::ChunkInfo& chunk) {
    Json row = {{"fqn", JsonText(tensor.fqn)},    {"offsets", chunk.box.offsets},
                {"sizes", chunk.box.sizes},       {"bytes", chunk.length_bytes()},
                {"digest", chunk.digest.ToHex()}, {"encoding", "raw"}};
    if (chunk.extents.size() == 1) {
      AddPlace(chunk.extents.front(), row);
    } else {
      for (const kv::Extent& extent : chunk.extents) {
        Json& part = row["extents"].emplace_back();
        AddPlace(extent, part);
        part["bytes"] = extent.length_bytes;
      }
    }
    row["since_step"] = chunk.since_step;
    return row;
  }

 private:
  void AddPlace(const kv::Extent& extent, Json& json) {
    json["segment"] = names_.Name(extent.segment_id);
    json["segment_id"] = extent.segment_id;
    json["offset_bytes"] = extent.offset_bytes;
  }

  Table table_;
  SegmentNames names_;
};

struct SegmentUse {
  uint64_t steps = 0;
  uint64_t latest_bytes = 0;  // live in the latest step
};

Result<std::map<uint64_t, SegmentUse>> CountUse(const kv::Snapshot& snapshot) {
  CAIRN_TRY_ASSIGN(const std::vector<kv::Usage> usage, snapshot.SegmentUsage());
  const auto& steps = snapshot.steps();
  std::map<uint64_t, SegmentUse> uses;
  for (const kv::Usage& entry : usage) {
    SegmentUse& use = uses[entry.segment_id];
    use.steps += 1;
    if (!steps.empty() && entry.generation == steps.back().generation) {
      use.latest_bytes += entry.live_bytes;
    }
  }
  return uses;
}

}  // namespace

Result<int> DumpSteps(const DumpRun& run, const std::string& store) {
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenWholeStore(store, "steps"));
  CAIRN_TRY_ASSIGN(const std::vector<kv::StepInfo> steps, opened.store->Steps());
  if (run.json) {
    JsonList list(run.out, HeadJson(opened), "steps");
    for (const kv::StepInfo& step : steps) list.Add(StepJson(step));
    list.Finish();
    return kExitFine;
  }
  if (steps.empty()) NoteNothing(run, "No steps yet.");
  Table table(run.out, {{"STEP", Align::kRight},
                        {"SAVED"},
                        {"AGE", Align::kRight},
                        {"RANKS", Align::kRight},
                        {"KEYS", Align::kRight},
                        {"CHUNKS", Align::kRight},
                        {"REUSED", Align::kRight},
                        {"LOGICAL", Align::kRight},
                        {"NEW", Align::kRight},
                        {"BASE", Align::kRight}});
  const int64_t now = NowUnixNs();
  for (const kv::StepInfo& step : steps) {
    table.Add({fmt::to_string(step.step), LocalTime(step.created_unix_ns),
               Age(step.created_unix_ns, now), GroupedCount(step.world_size),
               GroupedCount(step.tensor_count + step.value_count), GroupedCount(step.chunk_count),
               Percent(step.reused_chunk_count, step.chunk_count), HumanBytes(step.logical_bytes),
               HumanBytes(step.written_bytes),
               step.base_step ? fmt::to_string(*step.base_step) : "-"});
  }
  table.Finish();
  return kExitFine;
}

Result<int> DumpKeys(const DumpRun& run, const std::string& address,
                     const std::vector<std::string>& patterns) {
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenToLook(address));
  CAIRN_TRY_ASSIGN(const core::Contents contents, ListKeys(opened, patterns));
  if (run.json) {
    JsonList list(run.out, HeadJson(opened, contents.step), "keys");
    ForEachKey(
        contents, [&](const core::TensorInfo& tensor) { list.Add(TensorJson(tensor)); },
        [&](const core::ValueInfo& value) { list.Add(ValueInfoJson(value)); });
    list.Finish();
    return kExitFine;
  }
  if (contents.tensors.empty() && contents.values.empty()) NoteNoMatch(run, contents);
  Table table(run.out, {{"FQN", Align::kLeft, true},
                        {"DTYPE"},
                        {"SHAPE"},
                        {"BYTES", Align::kRight},
                        {"CHUNKS", Align::kRight},
                        {"VALUE OR NOTE", Align::kLeft, true}});
  ForEachKey(
      contents,
      [&](const core::TensorInfo& tensor) {
        const Style style = tensor.hidden ? Style::kDim : Style::kPlain;
        table.Add({Cell(EscapeText(tensor.fqn), style),
                   std::string(schema::DTypeName(tensor.dtype)), ShapeText(tensor.shape),
                   HumanBytes(tensor.nbytes),
                   tensor.alias_of ? "-" : GroupedCount(tensor.chunk_count),
                   Cell(TensorNote(tensor), Style::kDim)});
      },
      [&](const core::ValueInfo& value) {
        table.Add({EscapeText(value.fqn), Cell(ValueKindName(value.value), Style::kCyan), "", "",
                   "", EscapeText(core::FormatValue(value.value))});
      });
  table.Finish();
  return kExitFine;
}

Result<int> DumpChunks(const DumpRun& run, const std::string& address,
                       const std::vector<std::string>& patterns) {
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenToLook(address));
  CAIRN_TRY_ASSIGN(const core::Contents contents, ListKeys(opened, patterns));
  CAIRN_TRY_ASSIGN(auto snapshot, opened.store->kv().Latest());
  ChunkPrinter printer(run, SegmentNames(std::move(snapshot)));
  std::optional<JsonList> list;
  if (run.json) list.emplace(run.out, HeadJson(opened, contents.step), "chunks");
  uint64_t chunk_count = 0;
  for (const core::TensorInfo& tensor : contents.tensors) {
    if (tensor.alias_of) continue;
    const auto chunks = opened.store->Chunks(contents.step, tensor.fqn);
    if (!chunks) {
      if (list) list->Abandon(chunks.error());
      printer.Finish();  // what came before the damage is worth seeing
      return Fail(chunks.error());
    }
    chunk_count += chunks->size();
    for (const core::ChunkInfo& chunk : *chunks) {
      if (list) {
        list->Add(printer.RowJson(tensor, chunk));
      } else {
        printer.Add(tensor, chunk);
      }
    }
  }
  if (list) {
    list->Finish();
  } else {
    printer.Finish();
    if (chunk_count == 0) NoteNothing(run, "No chunks: no tensor with elements matches.");
  }
  return kExitFine;
}

Result<int> DumpSegments(const DumpRun& run, const std::string& store) {
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenWholeStore(store, "segments"));
  CAIRN_TRY_ASSIGN(const auto snapshot, opened.store->kv().Latest());
  CAIRN_TRY_ASSIGN(std::vector<kv::SegmentInfo> segments, snapshot->Segments());
  std::sort(segments.begin(), segments.end(), [](const auto& a, const auto& b) {
    return std::tie(a.step, a.rank, a.name) < std::tie(b.step, b.rank, b.name);
  });
  CAIRN_TRY_ASSIGN(auto uses, CountUse(*snapshot));
  if (run.json) {
    JsonList list(run.out, HeadJson(opened), "segments");
    for (const kv::SegmentInfo& segment : segments) {
      const SegmentUse& use = uses[segment.segment_id];
      list.Add({{"segment", JsonText(segment.name)},
                {"segment_id", segment.segment_id},
                {"step", segment.step},
                {"rank", segment.rank},
                {"chunks", segment.chunk_count},
                {"file_bytes", segment.file_bytes},
                {"payload_bytes", segment.payload_bytes},
                {"used_by_steps", use.steps},
                {"used_by_latest_bytes", use.latest_bytes}});
    }
    list.Finish();
    return kExitFine;
  }
  if (segments.empty()) NoteNothing(run, "No segments: nothing has been saved.");
  Table table(run.out, {{"SEGMENT"},
                        {"STEP", Align::kRight},
                        {"RANK", Align::kRight},
                        {"CHUNKS", Align::kRight},
                        {"FILE", Align::kRight},
                        {"PAYLOAD", Align::kRight},
                        {"USED BY", Align::kRight},
                        {"LIVE IN LATEST", Align::kRight}});
  for (const kv::SegmentInfo& segment : segments) {
    const SegmentUse& use = uses[segment.segment_id];
    table.Add({EscapeText(segment.name), fmt::to_string(segment.step), fmt::to_string(segment.rank),
               GroupedCount(segment.chunk_count), HumanBytes(segment.file_bytes),
               HumanBytes(segment.payload_bytes), Plural(use.steps, "step"),
               Percent(use.latest_bytes, segment.payload_bytes)});
  }
  table.Finish();
  return kExitFine;
}

}  // namespace cairn::tools::internal
