// Counts the live bytes of each segment while the records of the chunks pass.

#include "kv/commit/internal/step_table_writer.h"

#include "kv/base/extents.h"
#include "kv/base/mutex.h"
#include "kv/base/step_records.h"
#include "kv/root/internal/kv_records.h"
#include "kv/state/internal/root_change.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {

StepTableWriter::StepTableWriter(StoreState& state, uint64_t step, TableStack base)
    : state_(state), step_(step), base_(std::move(base)) {}

Result<StepTableWriter> StepTableWriter::Begin(StoreState& state, const StepEntry* base,
                                               const StepInfo& info) {
  std::vector<TableInfo> tables;
  std::vector<SegmentUse> usage;
  if (base != nullptr) {
    tables = base->tables;
    CAIRN_TRY_ASSIGN(usage, UsageOf(state, *base));
  }
  CAIRN_TRY_ASSIGN(TableStack stack, state.tables->OpenStack(tables));
  StepTableWriter writer(state, info.step, std::move(stack));
  for (const SegmentUse& use : usage) writer.base_segments_[use.segment.id] = use.segment;
  return writer;
}

Result<StepTableWriter> StepTableWriter::Create(StoreState& state, const StepEntry* base,
                                                const StepInfo& info, RecordSource source) {
  CAIRN_TRY_ASSIGN(StepTableWriter writer, Begin(state, base, info));
  CAIRN_TRY_ASSIGN(writer.writer_,
                   DeltaWriter::Create(*state.storage, NewObjectId(state.epoch), writer.base_,
                                       TableKey(Column::kTables, ""), source));
  CAIRN_TRY(writer.Write(Column::kSteps, "", EncodeStep(info)));
  return writer;
}

Result<void> StepTableWriter::Write(Column column, std::string_view key,
                                    std::span<const std::byte> value) {
  key_.assign(1, static_cast<char>(column)).append(key);
  return writer_->Add(key_, value);
}

Result<void> StepTableWriter::Add(Column column, std::string_view key,
                                  std::span<const std::byte> value) {
  if (column == Column::kChunks) {
    CAIRN_TRY_ASSIGN(const ChunkExtents extents, DecodeChunkExtents(value));
    live_bytes_.Add(extents);
  }
  return AddCounted({.column = column, .key = key, .value = value});
}

Result<void> StepTableWriter::AddCounted(const RecordView& record) {
  if (record.column == Column::kSegments) {  // written later, in order with those of the base
    CAIRN_TRY_ASSIGN(const SegmentInfo info, DecodeSegment(record.value));
    new_segments_[info.segment_id] = {.id = {.epoch = info.epoch, .id = info.segment_id},
                                      .record = {record.value.begin(), record.value.end()}};
    return {};
  }
  return Write(record.column, record.key, record.value);
}

Result<void> StepTableWriter::AddSegmentsOf(StoreState& state, const StepEntry& step) {
  CAIRN_TRY_ASSIGN(const TableStack tables, state.tables->OpenStack(step.tables));
  CAIRN_TRY_ASSIGN(const std::vector<SegmentUse> usage, UsageOf(state, step));
  for (const SegmentUse& use : usage) {
    if (base_segments_.contains(use.segment.id)) continue;
    CAIRN_TRY_ASSIGN(const auto record,
                     tables.Get(TableKey(Column::kSegments, NumberKey(use.segment.id))));
    if (!record) {
      return Fail(ErrorCode::kDataLoss, "a step has no record of a segment that it uses");
    }
    new_segments_[use.segment.id] = {.id = use.segment, .record = {record->begin(), record->end()}};
  }
  return {};
}

Result<void> StepTableWriter::Finish(StepEntry& entry) {
  const BytesBySegment live_bytes = live_bytes_.Sorted();
  CAIRN_TRY(AddSegments(live_bytes));
  CAIRN_TRY(AddUsage(live_bytes, entry));
  CAIRN_TRY_ASSIGN(entry.tables, writer_->Finish(EncodeTables));
  return {};
}

Result<void> StepTableWriter::FinishSame(const StepEntry& base, StepEntry& entry) {
  CAIRN_TRY(writer_->KeepAfter(TableKey(Column::kSteps, "")));
  entry.usage = base.usage;
  entry.usage_in_table = base.usage_in_table;
  CAIRN_TRY_ASSIGN(entry.tables, writer_->Finish(EncodeTables));
  return {};
}

Result<void> StepTableWriter::AddSegments(const BytesBySegment& live_bytes) {
  for (const auto& [segment_id, bytes] : live_bytes) {
    const std::string key = NumberKey(segment_id);
    if (const auto found = new_segments_.find(segment_id); found != new_segments_.end()) {
      CAIRN_TRY(Write(Column::kSegments, key, found->second.record));
      continue;
    }
    if (!base_segments_.contains(segment_id)) {
      CAIRN_TRY(AddReplacedSegment(segment_id));
      CAIRN_TRY(Write(Column::kSegments, key, new_segments_.at(segment_id).record));
      continue;
    }
    CAIRN_TRY_ASSIGN(const auto record, base_.Get(TableKey(Column::kSegments, key)));
    if (!record) {
      return Fail(ErrorCode::kDataLoss, "the base has no record of a segment that it uses");
    }
    CAIRN_TRY(Write(Column::kSegments, key, *record));
  }
  return {};
}

/// The base was compacted since the step was planned. Its former segments remain until their grace
/// period has passed, unless a step uses them again.
Result<void> StepTableWriter::AddReplacedSegment(uint64_t segment_id) {
  std::optional<SegmentInfo> info;
  {
    const MutexLock lock(state_.mutex);
    const auto found = state_.replaced_segments.find(segment_id);
    if (found != state_.replaced_segments.end()) info = found->second;
  }
  if (!info || !state_.storage->Size(SegmentObject(*info))) return Fail(BaseReplacedError(step_));
  new_segments_[segment_id] = {.id = {.epoch = info->epoch, .id = segment_id},
                               .record = EncodeSegment(*info)};
  return {};
}

Result<void> StepTableWriter::AddUsage(const BytesBySegment& live_bytes, StepEntry& entry) {
  entry.usage_in_table = live_bytes.size() > kMaxInlineSegments;
  for (const auto& [segment_id, bytes] : live_bytes) {
    const auto found = new_segments_.find(segment_id);
    const SegmentUse use{
        .segment = found != new_segments_.end() ? found->second.id : base_segments_.at(segment_id),
        .live_bytes = bytes};
    if (entry.usage_in_table) {
      CAIRN_TRY(Write(Column::kUsage, NumberKey(segment_id), EncodeUsage(use)));
    } else {
      entry.usage.push_back(use);
    }
  }
  return {};
}

}  // namespace cairn::kv::internal
