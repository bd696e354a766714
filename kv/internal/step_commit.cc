// Streams the records of a step, in the order of their keys, into the table that differs from the
// base, and commits the root that refers to it.

#include "kv/internal/step_commit.h"

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kv/extents.h"
#include "kv/internal/commit/root_change.h"
#include "kv/internal/io/fault_point.h"
#include "kv/internal/parts/attempt_outcome.h"
#include "kv/internal/records/kv_records.h"
#include "kv/internal/storage/object_names.h"
#include "kv/internal/table/delta_writer.h"
#include "kv/internal/table/table_stack.h"

namespace cairn::kv::internal {
namespace {

/// Writes the table of one step.
class StepTableWriter {
 public:
  /// `base` is the step with which the records are compared, or null.
  static Result<StepTableWriter> Create(StepAttempt& attempt, const StepEntry* base) {
    StoreState& state = *attempt.store;
    std::vector<TableInfo> tables;
    std::vector<SegmentUse> usage;
    if (base != nullptr) {
      tables = base->tables;
      CAIRN_TRY_ASSIGN(usage, UsageOf(state, *base));
    }
    CAIRN_TRY_ASSIGN(TableStack stack, state.tables->OpenStack(tables));
    CAIRN_TRY_ASSIGN(auto writer, DeltaWriter::Create(*state.storage, NewObjectId(state.epoch),
                                                      stack, TableKey(Column::kTables, "")));
    return StepTableWriter(attempt, std::move(stack), usage, std::move(writer));
  }

  /// Writes the table and sets the tables and the usage of `entry`, whose info is complete.
  Result<void> Write(StepEntry& entry) {
    CAIRN_TRY(Add(Column::kSteps, "", EncodeStep(entry.info)));
    CAIRN_TRY(attempt_->records.ForEachInOrder(
        [this](Column column, std::string_view key, std::span<const std::byte> value) {
          return AddCollected(column, key, value);
        }));
    CAIRN_TRY(AddSegments());
    CAIRN_TRY(AddUsage(entry));
    CAIRN_TRY_ASSIGN(entry.tables, writer_->Finish([](std::span<const TableInfo> kept) {
      return EncodeTables(kept);
    }));
    return {};
  }

 private:
  StepTableWriter(StepAttempt& attempt, TableStack base, const std::vector<SegmentUse>& base_usage,
                  std::unique_ptr<DeltaWriter> writer)
      : attempt_(&attempt), base_(std::move(base)), writer_(std::move(writer)) {
    for (const SegmentUse& use : base_usage) base_segments_[use.segment.id] = use.segment;
  }

  Result<void> Add(Column column, std::string_view key, std::span<const std::byte> value) {
    key_.assign(1, static_cast<char>(column)).append(key);
    return writer_->Add(key_, value);
  }

  Result<void> AddCollected(Column column, std::string_view key, std::span<const std::byte> value) {
    if (column == Column::kSegments) {  // added later, in order with those of the base
      own_segments_[ReadBigEndian(key.data())] = {value.begin(), value.end()};
      return {};
    }
    if (column == Column::kChunks) {
      CAIRN_TRY_ASSIGN(const Extents extents, DecodeChunkExtents(value));
      for (const Extent& extent : extents) AddUse(extent);
    }
    return Add(column, key, value);
  }

  void AddUse(const Extent& extent) {
    if (last_use_ == nullptr || last_use_->first != extent.segment_id) {
      last_use_ = &*live_bytes_.try_emplace(extent.segment_id, 0).first;
    }
    last_use_->second += extent.length_bytes;
  }

  /// Adds the records of all segments that the step uses. kConflict: one of them is neither of this
  /// attempt nor of the base.
  Result<void> AddSegments() {
    for (const auto& [segment_id, live_bytes] : live_bytes_) {
      const std::string key = NumberKey(segment_id);
      if (const auto own = own_segments_.find(segment_id); own != own_segments_.end()) {
        CAIRN_TRY(Add(Column::kSegments, key, own->second));
        continue;
      }
      if (!base_segments_.contains(segment_id)) return Fail(BaseReplacedError(attempt_->step));
      CAIRN_TRY_ASSIGN(const auto record, base_.Get(TableKey(Column::kSegments, key)));
      if (!record) {
        return Fail(ErrorCode::kDataLoss, "the base has no record of a segment that it uses");
      }
      CAIRN_TRY(Add(Column::kSegments, key, *record));
    }
    return {};
  }

  Result<void> AddUsage(StepEntry& entry) {
    entry.usage_in_table = live_bytes_.size() > kMaxInlineSegments;
    for (const auto& [segment_id, live_bytes] : live_bytes_) {
      const auto of_base = base_segments_.find(segment_id);
      const SegmentUse use{.segment = own_segments_.contains(segment_id)
                                          ? ObjectId{attempt_->store->epoch, segment_id}
                                          : of_base->second,
                           .live_bytes = live_bytes};
      if (entry.usage_in_table) {
        CAIRN_TRY(Add(Column::kUsage, NumberKey(segment_id), EncodeUsage(use)));
      } else {
        entry.usage.push_back(use);
      }
    }
    return {};
  }

  StepAttempt* attempt_;
  TableStack base_;
  std::map<uint64_t, ObjectId> base_segments_;
  std::unique_ptr<DeltaWriter> writer_;
  std::string key_;
  std::map<uint64_t, std::vector<std::byte>> own_segments_;  // records by id
  std::map<uint64_t, uint64_t> live_bytes_;                  // by segment id
  std::pair<const uint64_t, uint64_t>* last_use_ = nullptr;  // in live_bytes_
};

/// Returns the base, or null if there is none. kConflict: it does not exist any more, and records
/// refer to it.
Result<StepEntryPtr> FindBase(const StepAttempt& attempt, const StepSummary& summary) {
  if (!summary.base_step) return nullptr;
  CAIRN_TRY_ASSIGN(StepEntryPtr base, CurrentRoot(*attempt.store)->steps.Find(*summary.base_step));
  if (base == nullptr && attempt.reused_chunk_count > 0) {
    return Fail(BaseReplacedError(attempt.step));
  }
  return base;
}

}  // namespace

Result<StepInfo> CommitStep(StepAttempt& attempt, const StepSummary& summary) {
  StoreState& state = *attempt.store;
  // Until the root is committed, no delete may remove a segment to which the records refer.
  const MutexLock write_lock(state.write_mutex);
  CAIRN_TRY(CheckCanCommit(state));
  if (attempt.has_ranks() && std::chrono::steady_clock::now() > attempt.options.deadline) {
    return Fail(Error{.code = ErrorCode::kUnavailable,
                      .message = "the deadline passed before the commit; allow more time",
                      .step = attempt.step});
  }
  StepEntry entry{.info = attempt.InfoOf(summary)};
  entry.info.generation = CurrentRoot(state)->root.number + 1;
  CAIRN_TRY_ASSIGN(const StepEntryPtr base, FindBase(attempt, summary));
  CAIRN_TRY_ASSIGN(StepTableWriter table, StepTableWriter::Create(attempt, base.get()));
  CAIRN_TRY(table.Write(entry));
  const std::string table_name = ObjectName(ObjectKind::kTable, entry.tables.front().id);
  auto unreachable = FindUnreachable(state, {}, &entry);
  Result<void> committed = unreachable ? CommitChange(state, {}, &entry, *std::move(unreachable))
                                       : Result<void>(std::unexpected(unreachable.error()));
  if (!committed) {
    if (!state.outcome_unknown) (void)state.storage->Remove(table_name);
    return Fail(std::move(committed).error().WithStep(attempt.step));
  }
  attempt.finished = true;  // the step exists, so its objects must not be removed any more
  attempt.failed = false;
  {
    const MutexLock lock(state.mutex);
    state.committed_attempt = attempt.attempt;
  }
  if (attempt.has_ranks()) {
    // A rank that does not receive this finds the step in the root when its deadline passes.
    (void)PublishCommitted(*state.storage, attempt.attempt, entry.info.generation);
  }
  (void)FaultPoint("commit.done");
  return entry.info;
}

}  // namespace cairn::kv::internal
