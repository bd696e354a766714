// Collects the records in the footers of an attempt, leaves out the tensors that are not complete,
// and writes the rest as a table without a base.

#include "kv/maintain/internal/footer_recovery.h"

#include <cairn_schema/structure_generated.h>
#include <cairn_schema/tensor_generated.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "kv/base/digest.h"
#include "kv/base/extents.h"
#include "kv/base/key.h"
#include "kv/base/record_check.h"
#include "kv/commit/internal/step_table_writer.h"
#include "kv/root/internal/kv_records.h"
#include "kv/segment/internal/segment_format.h"
#include "kv/state/internal/live_bytes.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {
namespace {

// --- segments

struct SealedSegment {
  SegmentInfo info;
  int64_t created_unix_ns = 0;
  uint64_t payload_end_bytes = 0;
  std::string attempt;
  std::vector<FooterEntry> entries;
};

/// kDataLoss: the header is damaged or belongs to another segment.
Result<SegmentHeader> ReadHeader(Storage& storage, const Uuid& store_uuid, const ObjectId& id) {
  std::array<std::byte, kSegmentHeaderBytes> bytes;
  CAIRN_TRY(storage.ReadRange(ObjectName(ObjectKind::kSegment, id), 0, bytes));
  CAIRN_TRY_ASSIGN(const SegmentHeader header, DecodeSegmentHeader(bytes));
  if (header.store_uuid == store_uuid && header.id() == id) {
    return header;
  }
  return Fail(ErrorCode::kDataLoss, "the segment has another name or belongs to another store");
}

/// kDataLoss: the segment is not sealed, is damaged, or belongs to another store.
Result<SealedSegment> ReadSegment(Storage& storage, const Uuid& store_uuid, const ObjectId& id) {
  SealedSegment segment{.info = NewSegmentInfo(id)};
  SegmentInfo& info = segment.info;
  const std::string name = SegmentObject(info);
  CAIRN_TRY_ASSIGN(const SegmentHeader header, ReadHeader(storage, store_uuid, id));
  CAIRN_TRY_ASSIGN(info.file_bytes, storage.Size(name));
  if (info.file_bytes < kSegmentHeaderBytes + kSegmentTrailerBytes) {
    return Fail(ErrorCode::kDataLoss, "the segment is not sealed");
  }
  std::array<std::byte, kSegmentTrailerBytes> trailer_bytes;
  CAIRN_TRY(storage.ReadRange(name, info.file_bytes - kSegmentTrailerBytes, trailer_bytes));
  CAIRN_TRY_ASSIGN(const SegmentTrailer trailer,
                   DecodeSegmentTrailer(trailer_bytes, info.file_bytes));
  if (trailer.segment_id != id.id) {
    return Fail(ErrorCode::kDataLoss, "the segment has the trailer of another one");
  }
  std::vector<std::byte> footer(trailer.footer_bytes);
  CAIRN_TRY(storage.ReadRange(name, trailer.footer_offset_bytes(), footer));
  if (Checksum64(footer) != trailer.footer_digest) {
    return Fail(ErrorCode::kDataLoss, "the segment's footer does not match its checksum");
  }
  CAIRN_TRY_ASSIGN(segment.entries, DecodeSegmentFooter(footer, id.id));
  CAIRN_TRY_ASSIGN(segment.attempt, DecodeFooterAttempt(footer));
  segment.created_unix_ns = header.created_unix_ns;
  segment.payload_end_bytes = trailer.payload_end_bytes;
  info.step = header.step;
  info.rank = header.rank;
  info.footer_digest = trailer.footer_digest;
  info.page_digests_checksum = trailer.page_digests_checksum;
  for (const FooterEntry& entry : segment.entries) {
    if (entry.column != Column::kChunks) continue;
    CAIRN_TRY_ASSIGN(const ChunkExtents extents, DecodeChunkExtents(entry.value));
    ++info.chunk_count;
    extents.ForEach([&](const Extent& extent) {
      if (extent.segment_id == id.id) info.payload_bytes += extent.length_bytes;
    });
  }
  return segment;
}

// --- records of one attempt

struct Tensor {
  std::vector<std::byte> record;                         // empty: no footer contains it
  std::map<std::string, std::vector<std::byte>> chunks;  // by key
  uint64_t chunk_bytes = 0;
};

/// The tensor with the number of chunks of all ranks. It has chunks, so it is not an alias; nobody
/// knows its aliases any more, so it is not hidden, either.
std::vector<std::byte> WithChunkCount(const schema::TensorRecord& tensor, uint64_t chunk_count) {
  flatbuffers::FlatBufferBuilder builder(256);
  std::vector<uint64_t> shape;
  if (tensor.shape() != nullptr) shape.assign(tensor.shape()->begin(), tensor.shape()->end());
  const auto shape_offset = builder.CreateVector(shape);
  schema::FinishTensorRecordBuffer(
      builder, schema::CreateTensorRecord(builder, schema::kRecordVersion, tensor.dtype(),
                                          shape_offset, tensor.nbytes(), chunk_count));
  return TakeBytes(builder);
}

/// One dict with a leaf per tensor, whose key is the FQN as it is. It cannot be divided into keys,
/// and different FQNs are different keys.
std::vector<std::byte> FlatStructure(const std::map<std::string, Tensor>& tensors) {
  std::vector<schema::NodeKind> kinds = {schema::NodeKind::Dict};
  std::vector<schema::KeyKind> key_kinds = {schema::KeyKind::Root};
  std::vector<schema::KeyForm> forms = {schema::KeyForm::Plain};
  std::vector<std::string> keys = {""};
  bool has_escapes = false;
  for (const auto& [fqn, tensor] : tensors) {
    kinds.push_back(schema::NodeKind::Tensor);
    key_kinds.push_back(schema::KeyKind::String);
    forms.push_back(schema::KeyForm::Verbatim);
    keys.push_back(fqn);
    has_escapes = has_escapes || fqn.contains('\\');
  }
  std::vector<uint32_t> child_counts(kinds.size(), 0);
  child_counts.front() = static_cast<uint32_t>(tensors.size());
  flatbuffers::FlatBufferBuilder builder;
  const auto kinds_offset = builder.CreateVector(kinds);
  const auto key_kinds_offset = builder.CreateVector(key_kinds);
  const auto keys_offset = builder.CreateVectorOfStrings(keys);
  const auto counts_offset = builder.CreateVector(child_counts);
  const auto forms_offset = has_escapes ? builder.CreateVector(forms) : 0;
  schema::FinishStructureRecordBuffer(
      builder,
      schema::CreateStructureRecord(builder, schema::kRecordVersion, kinds_offset, key_kinds_offset,
                                    keys_offset, counts_offset, 0, forms_offset));
  return TakeBytes(builder);
}

/// The recoverable records of one attempt.
struct Recovered {
  StepInfo info;
  std::map<std::string, Tensor> tensors;  // by FQN; complete
  std::vector<std::string> incomplete;    // FQNs
};

// --- all attempts

class Recoverer {
 public:
  Recoverer(StoreState& state, const FooterRecovery& recovery, RebuildReport& report)
      : state_(state), storage_(*state.storage), recovery_(recovery), report_(report) {}

  Result<std::vector<StepEntry>> Run() {
    CAIRN_TRY(ReadSegments());
    std::map<uint64_t, std::vector<const FooterAttempt*>> by_step;
    for (const auto& [name, attempt] : attempts_) {
      if (recovery_.wants(attempt)) by_step[attempt.step].push_back(&attempt);
    }
    std::vector<StepEntry> entries;
    for (const auto& [step, attempts] : by_step) {
      CAIRN_TRY_ASSIGN(std::optional<Recovered> best, CollectBest(step, attempts));
      if (!best) continue;
      best->info.generation = recovery_.first_generation + entries.size();
      auto entry = WriteTable(*best);
      if (!entry) return Fail(std::move(entry).error().WithStep(step));
      entries.push_back(*std::move(entry));
      ReportStep(*best);
    }
    return entries;
  }

 private:
  struct Segment {
    SegmentInfo info;
    uint64_t payload_end_bytes = 0;
  };

  Result<void> ReadSegments() {
    CAIRN_TRY_ASSIGN(auto names, storage_.List(ObjectFolder(ObjectKind::kSegment)));
    std::ranges::sort(names);
    for (const std::string& name : names) {
      const auto parsed = ParseObjectName(name);
      if (!parsed) continue;
      auto segment = ReadSegment(storage_, state_.uuid, parsed->id);
      if (!segment) {
        CAIRN_TRY(ReportSegment(parsed->id, std::move(segment).error()));
        continue;
      }
      const SegmentInfo& info = segment->info;
      segments_.emplace(info.segment_id,
                        Segment{.info = info, .payload_end_bytes = segment->payload_end_bytes});
      if (IsCompactionName(segment->attempt)) continue;
      FooterAttempt& attempt = attempts_[{info.step, segment->attempt}];
      attempt.step = info.step;
      attempt.attempt = segment->attempt;
      attempt.created_unix_ns = std::max(attempt.created_unix_ns, segment->created_unix_ns);
      attempt.world_size = std::max(attempt.world_size, info.rank + 1);
      attempt.segment_ids.push_back(info.segment_id);
    }
    return {};
  }

  /// Reports a segment that is damaged, unless its step does not need it.
  Result<void> ReportSegment(const ObjectId& id, Error error) {
    if (MayBeTemporary(error)) return Fail(CannotTellLoss(std::move(error)));
    const auto header = ReadHeader(storage_, state_.uuid, id);
    if (header) {
      const FooterAttempt unnamed{.step = header->step, .created_unix_ns = header->created_unix_ns};
      if (!recovery_.wants(unnamed)) return {};
      error = std::move(error).WithStep(header->step);
    }
    const std::string name = ObjectName(ObjectKind::kSegment, id);
    error = std::move(error).WithFile(ObjectPath(storage_.address(), name));
    // Without this, a step of a newer Cairn would be lost.
    if (error.code == ErrorCode::kUnimplemented) return Fail(std::move(error));
    report_.lost.push_back(std::move(error));
    return {};
  }

  Result<std::optional<Recovered>> CollectBest(uint64_t step,
                                               const std::vector<const FooterAttempt*>& attempts) {
    std::optional<Recovered> best;
    const auto drop = [&](const std::string& attempt) {
      report_.notes.push_back({.code = ErrorCode::kUnavailable,
                               .message = fmt::format("the segments of the attempt {} contain less "
                                                      "of the step, or are older; they were left "
                                                      "out",
                                                      attempt),
                               .step = step});
    };
    for (const FooterAttempt* attempt : attempts) {
      auto recovered = Collect(*attempt);
      if (!recovered && MayBeTemporary(recovered.error())) {
        return Fail(CannotTellLoss(std::move(recovered).error()));
      }
      // Without this, a step of a newer Cairn would be lost.
      if (!recovered && recovered.error().code == ErrorCode::kUnimplemented) {
        return Fail(std::move(recovered).error().WithStep(step));
      }
      if (!recovered || recovered->tensors.empty()) {
        Error error = recovered ? Error{.code = ErrorCode::kDataLoss,
                                        .message = fmt::format("the footers of the attempt {} "
                                                               "contain no complete tensor",
                                                               attempt->attempt)}
                                : std::move(recovered).error();
        report_.lost.push_back(std::move(error).WithStep(step));
        continue;
      }
      const auto rank = [](const Recovered& r) {
        return std::pair(r.info.logical_bytes, r.info.created_unix_ns);
      };
      if (!best || rank(*best) < rank(*recovered)) {
        if (best) drop(best->info.attempt);
        best = *std::move(recovered);
      } else {
        drop(attempt->attempt);
      }
    }
    return best;
  }

  /// Reads the footers of an attempt again: all of them together may not fit into memory.
  Result<Recovered> Collect(const FooterAttempt& attempt) {
    Recovered recovered{.info = {.step = attempt.step,
                                 .created_unix_ns = attempt.created_unix_ns,
                                 .world_size = attempt.world_size,
                                 .attempt = attempt.attempt}};
    for (const uint64_t segment_id : attempt.segment_ids) {
      const SegmentInfo& info = segments_.at(segment_id).info;
      CAIRN_TRY_ASSIGN(SealedSegment segment, ReadSegment(storage_, state_.uuid, IdOf(info)));
      recovered.info.written_bytes += info.payload_bytes;
      for (FooterEntry& entry : segment.entries) {
        CAIRN_TRY(AddEntry(std::move(entry), recovered.tensors));
      }
    }
    CAIRN_TRY(DropIncomplete(recovered));
    recovered.info.tensor_count = recovered.tensors.size();
    return recovered;
  }

  Result<void> AddEntry(FooterEntry entry, std::map<std::string, Tensor>& tensors) {
    if (entry.column != Column::kTensors && entry.column != Column::kChunks) return {};
    CAIRN_TRY_ASSIGN(const ParsedKey parsed, ParseKey(entry.key));
    Tensor& tensor = tensors[std::string(parsed.fqn)];
    if (entry.column == Column::kTensors) {
      tensor.record = std::move(entry.value);
    } else {
      CAIRN_TRY_ASSIGN(const ChunkExtents extents, DecodeChunkExtents(entry.value));
      bool exists = true;
      extents.ForEach([&](const Extent& extent) { exists = exists && Exists(extent); });
      if (!exists) return {};
      const auto [chunk, is_new] = tensor.chunks.try_emplace(entry.key, std::move(entry.value));
      if (is_new) tensor.chunk_bytes += extents.payload.length_bytes();
    }
    return {};
  }

  /// Returns whether the extent is in a segment that can be read.
  bool Exists(const Extent& extent) const {
    const auto found = segments_.find(extent.segment_id);
    return found != segments_.end() && extent.length_bytes <= found->second.payload_end_bytes &&
           extent.offset_bytes <= found->second.payload_end_bytes - extent.length_bytes;
  }

  /// Keeps the tensors whose chunks have all of their bytes. The number of chunks in a footer
  /// cannot be used for that: it counts the chunks of one rank.
  Result<void> DropIncomplete(Recovered& recovered) {
    StepInfo& step = recovered.info;
    for (auto it = recovered.tensors.begin(); it != recovered.tensors.end();) {
      auto& [fqn, tensor] = *it;
      const schema::TensorRecord* record = nullptr;
      if (!tensor.record.empty()) {
        CAIRN_TRY_ASSIGN(record,
                         CheckedRecord<schema::TensorRecord>(
                             tensor.record, schema::TensorRecordIdentifier(), "TensorRecord"));
      }
      if (record == nullptr || record->nbytes() != tensor.chunk_bytes) {
        recovered.incomplete.push_back(fqn);
        it = recovered.tensors.erase(it);
        continue;
      }
      step.chunk_count += tensor.chunks.size();
      step.logical_bytes += tensor.chunk_bytes;
      tensor.record = WithChunkCount(*record, tensor.chunks.size());
      ++it;
    }
    return {};
  }

  Result<StepEntry> WriteTable(Recovered& recovered) {
    const std::vector<std::byte> structure = FlatStructure(recovered.tensors);
    recovered.info.structure = PayloadDigest(structure);
    StepEntry entry{.info = recovered.info};
    CAIRN_TRY_ASSIGN(StepTableWriter table,
                     StepTableWriter::Create(state_, /*base=*/nullptr, recovered.info));
    const auto add = [&](Column column, std::string_view key, std::span<const std::byte> value) {
      return table.AddCounted({.key = TableKey(column, key), .value = value});
    };
    for (const auto& [fqn, tensor] : recovered.tensors) {
      CAIRN_TRY(add(Column::kTensors, FqnKey(fqn), tensor.record));
    }
    LiveBytes live_bytes;
    for (const auto& [fqn, tensor] : recovered.tensors) {
      for (const auto& [key, chunk] : tensor.chunks) {
        CAIRN_TRY_ASSIGN(const ChunkExtents extents, DecodeChunkExtents(chunk));
        live_bytes.Add(extents);
        CAIRN_TRY(add(Column::kChunks, key, chunk));
      }
    }
    table.AddUses(live_bytes);
    CAIRN_TRY(add(Column::kStructures, "", structure));
    for (const auto& [segment_id, bytes] : live_bytes.Sorted()) {
      CAIRN_TRY(add(Column::kSegments, NumberKey(segment_id),
                    EncodeSegment(segments_.at(segment_id).info)));
    }
    CAIRN_TRY(table.Finish(entry));
    return entry;
  }

  void ReportStep(const Recovered& recovered) {
    report_.notes.push_back(
        {.code = ErrorCode::kUnavailable,
         .message = fmt::format(
             "recovered {} tensors from the footers of segments, as one flat dict, without "
             "evidence that the step was committed and not deleted since; all else is lost: "
             "values, records of applications, metrics, the note, the structure, empty tensors, "
             "tensors that share memory with others, and chunks that the step shares with its base",
             recovered.tensors.size()),
         .step = recovered.info.step});
    if (recovered.incomplete.empty()) return;
    constexpr size_t kShown = 8;
    const std::span all(recovered.incomplete);
    report_.lost.push_back(
        {.code = ErrorCode::kDataLoss,
         .message =
             fmt::format("{} tensors of which the footers of the step's own segments do not "
                         "list all chunks, or whose segments cannot be read: {}{}",
                         all.size(), fmt::join(all.first(std::min(kShown, all.size())), ", "),
                         all.size() > kShown ? ", ..." : ""),
         .step = recovered.info.step});
  }

  StoreState& state_;
  Storage& storage_;
  const FooterRecovery& recovery_;
  RebuildReport& report_;
  std::map<uint64_t, Segment> segments_;                                // by id
  std::map<std::pair<uint64_t, std::string>, FooterAttempt> attempts_;  // by step and name
};

}  // namespace

bool MayBeTemporary(const Error& error) {
  return error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kResourceExhausted;
}

Error CannotTellLoss(Error error) {
  error.message +=
      "; no root was put; if this object can never be read, move it away and try again";
  return error;
}

Result<std::vector<StepEntry>> RecoverFromFooters(StoreState& state, const FooterRecovery& recovery,
                                                  RebuildReport& report) {
  return Recoverer(state, recovery, report).Run();
}

}  // namespace cairn::kv::internal
