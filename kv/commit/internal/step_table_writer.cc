// Counts the live bytes of each segment while the records of the chunks pass.

#include "kv/commit/internal/step_table_writer.h"

#include <optional>
#include <utility>

#include "kv/base/extents.h"
#include "kv/base/mutex.h"
#include "kv/base/step_records.h"
#include "kv/root/internal/kv_records.h"
#include "kv/state/internal/root_change.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {

Result<StepTableWriter> StepTableWriter::Create(StoreState& state, const StepEntry* base,
                                                const StepInfo& info) {
  StepTableWriter writer(state, info.step);
  if (base != nullptr) CAIRN_TRY(writer.AddSegmentsOf(*base));
  CAIRN_TRY_ASSIGN(writer.writer_,
                   OverlayWriter::Create(*state.storage, NewObjectId(state.epoch),
                                         base != nullptr ? writer.stacks_.front() : TableStack(),
                                         TableKey(Column::kTables, "")));
  CAIRN_TRY(writer.writer_->Add(TableKey(Column::kSteps, ""), EncodeStep(info)));
  return writer;
}

Result<void> StepTableWriter::Add(const TableRecord& record) {
  if (record.column() == Column::kChunks) {
    CAIRN_TRY_ASSIGN(const ChunkExtents extents, DecodeChunkExtents(record.value));
    live_bytes_.Add(extents);
  }
  return AddCounted(record);
}

Result<void> StepTableWriter::AddCounted(const TableRecord& record) {
  if (record.column() != Column::kSegments) return writer_->Add(record.key, record.value);
  // Written later, in order with the segments of the base.
  CAIRN_TRY_ASSIGN(const SegmentInfo info, DecodeSegment(record.value));
  segments_[info.segment_id] = {.id = {.epoch = info.epoch, .id = info.segment_id},
                                .record = {record.value.begin(), record.value.end()}};
  return {};
}

Result<void> StepTableWriter::AddSegmentsOf(const StepEntry& step) {
  CAIRN_TRY_ASSIGN(const std::vector<SegmentUse> usage, UsageOf(*state_, step));
  CAIRN_TRY_ASSIGN(TableStack tables, state_->tables->OpenStack(step.tables));
  stacks_.push_back(std::move(tables));
  for (const SegmentUse& use : usage) {
    segments_.try_emplace(use.segment.id, Segment{.id = use.segment, .tables = &stacks_.back()});
  }
  return {};
}

Result<void> StepTableWriter::Finish(StepEntry& entry) {
  const auto live_bytes = live_bytes_.Sorted();
  for (const auto& [segment_id, bytes] : live_bytes) {
    CAIRN_TRY(ReadSegment(segment_id));
    CAIRN_TRY(writer_->Add(TableKey(Column::kSegments, NumberKey(segment_id)),
                           segments_.at(segment_id).record));
  }
  entry.usage_in_table = live_bytes.size() > kMaxInlineSegments;
  for (const auto& [segment_id, bytes] : live_bytes) {
    const SegmentUse use{.segment = segments_.at(segment_id).id, .live_bytes = bytes};
    if (entry.usage_in_table) {
      CAIRN_TRY(writer_->Add(TableKey(Column::kUsage, NumberKey(segment_id)), EncodeUsage(use)));
    } else {
      entry.usage.push_back(use);
    }
  }
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

/// Makes sure that segments_ contains the record of the segment.
Result<void> StepTableWriter::ReadSegment(uint64_t segment_id) {
  const auto found = segments_.find(segment_id);
  if (found == segments_.end()) {
    CAIRN_TRY_ASSIGN(segments_[segment_id], FindReplaced(segment_id));
    return {};
  }
  Segment& segment = found->second;
  if (!segment.record.empty()) return {};
  CAIRN_TRY_ASSIGN(auto record,
                   segment.tables->Get(TableKey(Column::kSegments, NumberKey(segment_id))));
  if (!record) {
    return Fail(ErrorCode::kDataLoss, "a step has no record of a segment that it uses");
  }
  segment.record = *std::move(record);
  return {};
}

/// The base was compacted since the step was planned. Its former segments remain until their grace
/// period has passed, unless a step uses them again.
Result<StepTableWriter::Segment> StepTableWriter::FindReplaced(uint64_t segment_id) const {
  std::optional<SegmentInfo> info;
  {
    const MutexLock lock(state_->mutex);
    const auto found = state_->replaced_segments.find(segment_id);
    if (found != state_->replaced_segments.end()) info = found->second;
  }
  if (!info || !state_->storage->Size(SegmentObject(*info))) return Fail(BaseReplacedError(step_));
  return Segment{.id = {.epoch = info->epoch, .id = segment_id}, .record = EncodeSegment(*info)};
}

}  // namespace cairn::kv::internal
