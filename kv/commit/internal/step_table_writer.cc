#include "kv/commit/internal/step_table_writer.h"

#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <utility>

#include "kv/base/extents.h"
#include "kv/base/key.h"
#include "kv/base/mutex.h"
#include "kv/root/internal/kv_records.h"
#include "kv/state/internal/root_change.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {
namespace {

constexpr uint64_t kMergeFactor = 4;
constexpr uint64_t kMaxDifferenceBytes = 64 << 20;

/// The key of the last record of each table, with the tables of the step after this one. Records of
/// the base from this key on are ignored.
const std::string& EndKey() {
  static const std::string key = TableKey(Column::kTables, "");
  return key;
}

/// Compares with memcmp, which std::ranges::equal does not use for std::byte.
bool IsEqual(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace

Result<StepTableWriter> StepTableWriter::Create(StoreState& state, const StepEntry* base,
                                                const StepInfo& info) {
  StepTableWriter writer(state, info.step);
  if (base != nullptr) {
    CAIRN_TRY(writer.AddSegmentsOf(*base));
    writer.base_ = writer.stacks_.front().tables();
  }
  if (writer.base_.empty()) {
    CAIRN_TRY_ASSIGN(writer.writer_, TableWriter::Create(*state.storage, NewObjectId(state.epoch)));
  } else {
    writer.compared_ = std::make_unique<MergeIterator>(writer.base_, TableAccess::kBulk, EndKey());
    CAIRN_TRY(writer.compared_->Seek({}));
    CAIRN_TRY(writer.SkipTombstones());
  }
  CAIRN_TRY(writer.Put(TableKey(Column::kSteps, ""), EncodeStep(info)));
  return writer;
}

// --- records and segments

Result<void> StepTableWriter::Add(const TableRecord& record) {
  if (record.column() == Column::kChunks) {
    CAIRN_TRY_ASSIGN(const ChunkExtents extents, DecodeChunkExtents(record.value));
    live_bytes_.Add(extents);
  }
  return AddCounted(record);
}

Result<void> StepTableWriter::AddCounted(const TableRecord& record) {
  if (record.column() != Column::kSegments) return Put(record.key, record.value);
  // Written later, in order with the segments of the base.
  CAIRN_TRY_ASSIGN(const SegmentInfo info, DecodeSegment(record.value));
  return AddSegment(
      {.id = IdOf(info), .tables = nullptr, .record = {record.value.begin(), record.value.end()}});
}

Result<void> StepTableWriter::AddSegment(Segment segment) {
  const auto [found, is_new] = segments_.try_emplace(segment.id.id, segment);
  if (!is_new && found->second.id.id_tail != segment.id.id_tail) {
    return Fail(Error{.code = ErrorCode::kConflict,
                      .message = fmt::format("two segments of the step have ids that begin with "
                                             "{:016x}; save the step again",
                                             segment.id.id),
                      .step = step_});
  }
  if (!segment.record.empty()) found->second = std::move(segment);
  return {};
}

Result<void> StepTableWriter::AddSegmentsOf(const StepEntry& step) {
  CAIRN_TRY_ASSIGN(const std::vector<SegmentUse> usage, UsageOf(*state_, step));
  CAIRN_TRY_ASSIGN(TableStack tables, state_->tables->OpenStack(step.tables));
  stacks_.push_back(std::move(tables));
  for (const SegmentUse& use : usage) {
    CAIRN_TRY(AddSegment({.id = use.segment, .tables = &stacks_.back(), .record = {}}));
  }
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
  return Segment{.id = IdOf(*info), .tables = nullptr, .record = EncodeSegment(*info)};
}

Result<void> StepTableWriter::Finish(StepEntry& entry) {
  const auto live_bytes = live_bytes_.Sorted();
  for (const auto& [segment_id, bytes] : live_bytes) {
    CAIRN_TRY(ReadSegment(segment_id));
    CAIRN_TRY(
        Put(TableKey(Column::kSegments, NumberKey(segment_id)), segments_.at(segment_id).record));
  }
  entry.usage_in_tables = live_bytes.size() > kMaxInlineSegments;
  for (const auto& [segment_id, bytes] : live_bytes) {
    const SegmentUse use{.segment = segments_.at(segment_id).id, .live_bytes = bytes};
    if (entry.usage_in_tables) {
      CAIRN_TRY(Put(TableKey(Column::kUsage, NumberKey(segment_id)), EncodeUsage(use)));
    } else {
      entry.usage.push_back(use);
    }
  }
  CAIRN_TRY(DeleteBefore(EndKey()));
  CAIRN_TRY_ASSIGN(entry.tables, FinishTable());
  return {};
}

Result<void> StepTableWriter::FinishSame(const StepEntry& base, StepEntry& entry) {
  compared_.reset();
  if (writer_ != nullptr) {
    MergeIterator kept(base_, TableAccess::kBulk, EndKey());
    CAIRN_TRY(kept.Seek(last_key_ + '\0'));
    while (kept.Valid()) {
      if (!kept.value().empty()) CAIRN_TRY(writer_->Add(kept.key(), kept.value()));
      CAIRN_TRY(kept.Next());
    }
  }
  entry.usage = base.usage;
  entry.usage_in_tables = base.usage_in_tables;
  CAIRN_TRY_ASSIGN(entry.tables, FinishTable());
  return {};
}

// --- the comparison with the base

Result<void> StepTableWriter::Put(std::string_view key, std::span<const std::byte> value) {
  if (writer_ == nullptr) {
    if (key <= last_key_) {
      return Fail(ErrorCode::kInvalidArgument,
                  "the records of a step are not in the order of keys");
    }
    last_key_ = key;
    CAIRN_TRY(CheckRecord(key, value));
    CAIRN_TRY(DeleteBefore(key));
  }
  if (writer_ != nullptr) return writer_->Add(key, value);
  if (compared_->Valid() && compared_->key() == key) {
    const bool is_equal = IsEqual(compared_->value(), value);
    CAIRN_TRY(compared_->Next());
    CAIRN_TRY(SkipTombstones());
    has_equal_ |= is_equal;
    if (is_equal) return {};
  }
  return AddDifference(key, value);
}

Result<void> StepTableWriter::SkipTombstones() {
  while (compared_->Valid() && compared_->value().empty()) CAIRN_TRY(compared_->Next());
  return {};
}

/// Adds a tombstone for each record of the base, from the current one on, that is less than `end`.
Result<void> StepTableWriter::DeleteBefore(std::string_view end) {
  while (compared_ != nullptr && compared_->Valid() && compared_->key() < end) {
    CAIRN_TRY(AddDifference(compared_->key(), {}));
    if (compared_ == nullptr) break;
    CAIRN_TRY(compared_->Next());
    CAIRN_TRY(SkipTombstones());
  }
  return {};
}

/// Adds a record or a tombstone. `key` is the last one that was compared. If the table has to be a
/// complete one, begins it with the records of the new step up to this key.
Result<void> StepTableWriter::AddDifference(std::string_view key,
                                            std::span<const std::byte> value) {
  CAIRN_TRY(differences_.Add({.key = key, .value = value}));
  ++difference_count_;
  if (differences_.size_bytes() <= kMaxDifferenceBytes && MergeDepth() < base_.size()) return {};
  // A training step changes every chunk, and then nothing of the base has to be read again.
  CAIRN_TRY(WriteMerged(has_equal_ ? base_ : Tables(), /*keep_tombstones=*/false, key));
  compared_.reset();
  return {};
}

/// Begins the table with the differences, and the records of `tables` up to `last_key` that they do
/// not hide.
Result<void> StepTableWriter::WriteMerged(Tables tables, bool keep_tombstones,
                                          std::string_view last_key) {
  CAIRN_TRY_ASSIGN(writer_, TableWriter::Create(*state_->storage, NewObjectId(state_->epoch)));
  const auto write = [&](std::string_view key, std::span<const std::byte> value) -> Result<void> {
    if (!value.empty()) return writer_->Add(key, value);
    return keep_tombstones ? writer_->AddTombstone(key) : Result<void>();
  };
  MergeIterator older(tables, TableAccess::kBulk, EndKey());
  CAIRN_TRY(older.Seek({}));
  CAIRN_TRY_ASSIGN(const RecordRun differences, differences_.Finish());
  CAIRN_TRY_ASSIGN(RecordRunReader newer, RecordRunReader::Open(nullptr, differences));
  while (true) {
    const bool has_older = older.Valid() && older.key() <= last_key;
    if (!has_older && !newer.Valid()) return {};
    if (newer.Valid() && (!has_older || newer.record().key <= older.key())) {
      const bool is_hidden = has_older && newer.record().key == older.key();
      CAIRN_TRY(write(newer.record().key, newer.record().value));
      if (is_hidden) CAIRN_TRY(older.Next());
      CAIRN_TRY(newer.Next());
    } else {
      CAIRN_TRY(write(older.key(), older.value()));
      CAIRN_TRY(older.Next());
    }
  }
}

/// Returns how many tables of the base are merged into the new one by the rule above.
size_t StepTableWriter::MergeDepth() const {
  uint64_t merged_records = difference_count_;
  size_t depth = 0;
  for (; depth < base_.size(); ++depth) {
    const uint64_t next_records = base_[depth]->info().record_count - 1;  // without the last one
    const bool is_small = next_records <= kMergeFactor * merged_records;
    const bool is_too_many = base_.size() - depth + 1 > kMaxTables;
    if (!is_small && !is_too_many) break;
    merged_records += next_records;
  }
  return depth;
}

/// Makes the new table durable, and returns the tables of the step, newest first.
Result<std::vector<TableInfo>> StepTableWriter::FinishTable() {
  size_t merged_count = base_.size();
  if (writer_ == nullptr) {
    merged_count = MergeDepth();
    CAIRN_TRY(WriteMerged(base_.first(merged_count), /*keep_tombstones=*/true, EndKey()));
  }
  std::vector<TableInfo> tables;
  for (const auto& table : base_.subspan(merged_count)) tables.push_back(table->info());
  CAIRN_TRY(writer_->Add(EndKey(), EncodeTables(tables)));
  CAIRN_TRY_ASSIGN(const TableInfo written, writer_->Finish());
  tables.insert(tables.begin(), written);
  return tables;
}

}  // namespace cairn::kv::internal
