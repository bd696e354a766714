// The steps of a merging rank:
//
// 1. Wait for the task of its range. There is none if the attempt ends before, or if rank 0 merges
//    alone.
// 2. Read the shared records of the tensors, and the chunks of the range, from all parts.
// 3. Check them (RangeRecords::Summarize).
// 4. Write the table with what differs from the tables that the step keeps, and put the result.
//
// If it fails, it publishes the error; if it dies, rank 0 fails the attempt at its deadline.
// If it puts the result of an attempt that was discarded, it removes the table; otherwise the table
// belongs to rank 0.

#include "kv/internal/range_merge.h"

#include <optional>
#include <string>
#include <utility>

#include "kv/internal/commit/live_bytes.h"
#include "kv/internal/commit/step_records_buffer.h"
#include "kv/internal/parts/attempt_outcome.h"
#include "kv/internal/parts/range_task.h"
#include "kv/internal/root/lease.h"
#include "kv/internal/section_gatherer.h"
#include "kv/internal/shared_records.h"
#include "kv/internal/step_attempt.h"
#include "kv/internal/storage/object_names.h"
#include "kv/internal/table/overlay_writer.h"

namespace cairn::kv::internal {
namespace {

// Less than on rank 0: what the check of the chunks needs is in memory at the same time.
constexpr uint64_t kMemoryBytes = 176 << 20;

/// Returns the range that a rank merges.
std::optional<uint32_t> RangeOf(const BeginOptions& options) {
  const MergingRanks merging{.count = MergingRankCount(options)};
  for (uint32_t range = 0; merging.count > 1 && range < merging.count; ++range) {
    if (merging.RankOf(range, options.world_size) == options.rank) return range;
  }
  return std::nullopt;
}

/// Returns nothing if there is no task before the deadline, or before the attempt ends.
Result<std::optional<RangeTask>> AwaitTask(StoreState& state, const PartHeader& header,
                                           const BeginOptions& options, uint32_t range) {
  Storage& storage = *state.storage;
  Poll poll(options.deadline, MergingRankCount(options));
  while (true) {
    auto task = ReadTask(storage, header, range);
    if (task) return *std::move(task);
    if (task.error().code != ErrorCode::kNotFound) return Fail(std::move(task).error());
    const bool has_ended = FindOutcome(storage, header.attempt).has_value() ||
                           !ObjectExists(storage, LeaseName(state.session)).value_or(false);
    if (has_ended || !poll.Again()) return std::nullopt;
  }
}

Result<void> AddSharedTensors(Storage& storage, const PartHeader& header, const RangeTask& task,
                              RangeRecords& records) {
  for (const auto& [rank, digest] : task.shared) {
    CAIRN_TRY_ASSIGN(const auto shared, ReadSharedRecords(storage, header, digest));
    for (const SharedRecord& record : shared) {
      if (record.column != Column::kTensors || record.key < task.begin) continue;
      if (!task.end.empty() && record.key >= task.end) continue;
      CAIRN_TRY(records.AddShared(rank, record.column, record.key, record.value));
    }
  }
  return {};
}

/// Writes the records that differ from the tables that are kept.
Result<TableInfo> WriteTable(StoreState& state, const RangeTask& task, StepRecordsBuffer& chunks) {
  CAIRN_TRY_ASSIGN(const TableStack kept, state.tables->OpenStack(task.kept));
  const KeyRange keys{.begin = TableKey(Column::kChunks, task.begin),
                      .end = task.end.empty() ? TableKey(Column::kValues, "")
                                              : TableKey(Column::kChunks, task.end)};
  CAIRN_TRY_ASSIGN(const auto writer,
                   OverlayWriter::Create(*state.storage, NewObjectId(state.epoch), kept, {keys},
                                         RecordSource::kMemory));
  std::string key;
  CAIRN_TRY(chunks.ForEachInOrder([&](const RecordView& record) {
    key.assign(1, static_cast<char>(record.column)).append(record.key);
    return writer->Add(key, record.value);
  }));
  return writer->Finish();
}

Result<void> MergeOneRange(StoreState& state, const PartHeader& header, const BeginOptions& options,
                           uint32_t range, RangeRecords& records) {
  CAIRN_TRY_ASSIGN(const auto task, AwaitTask(state, header, options, range));
  if (!task) return {};

  CAIRN_TRY(AddSharedTensors(*state.storage, header, *task, records));
  StepRecordsBuffer chunks(state.storage, state.epoch, kMemoryBytes);
  LiveBytes uses;
  RangeResult result;
  CAIRN_TRY(GatherSections(*state.storage,
                           {.attempt = options.attempt,
                            .epoch = state.epoch,
                            .begin = task->begin,
                            .end = task->end,
                            .reads = task->reads},
                           [&](RankBatch& batch) {
                             result.chunk_count += ChunkCountOf(batch);
                             return AddChunks(batch, records, chunks, uses);
                           }));
  CAIRN_TRY_ASSIGN(result.summary, records.Summarize());
  for (const auto& use : uses.Sorted()) result.uses.push_back(use);
  CAIRN_TRY_ASSIGN(result.table, WriteTable(state, *task, chunks));
  CAIRN_TRY(PutResult(state.storage, header, range, result));
  const auto outcome = FindOutcome(*state.storage, options.attempt);
  if (outcome && outcome->discarded) {
    (void)state.storage->Remove(ObjectName(ObjectKind::kTable, result.table.id));
  }
  return {};
}

}  // namespace

Result<void> MergeRange(StoreState& state, uint64_t step, const BeginOptions& options,
                        RangeRecords& records) {
  const auto range = RangeOf(options);
  if (!range) return {};
  const PartHeader header{.store_uuid = state.uuid,
                          .step = step,
                          .rank = options.rank,
                          .world_size = options.world_size,
                          .attempt = options.attempt};
  Result<void> merged = MergeOneRange(state, header, options, *range, records);
  // If this cannot be put either, rank 0 fails at its deadline.
  if (!merged) {
    (void)PublishMergeFailure(*state.storage, options.attempt, options.rank, merged.error());
  }
  return merged;
}

}  // namespace cairn::kv::internal
