#include "kv/internal/merging_ranks.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "kv/internal/commit/root_change.h"
#include "kv/internal/part_gatherer.h"
#include "kv/internal/parts/attempt_outcome.h"
#include "kv/internal/parts/range_task.h"
#include "kv/internal/parts/section_index.h"
#include "kv/internal/section_gatherer.h"
#include "kv/internal/storage/name_check.h"
#include "kv/internal/storage/object_names.h"
#include "kv/internal/table/delta_writer.h"

namespace cairn::kv::internal {
namespace {

/// Adds all chunks to the records of rank 0, as if it had gathered parts without an index.
Result<void> MergeAlone(StepAttempt& attempt, const SectionIndex& index, RankRecords& others) {
  const std::vector<SectionRead> reads = index.ReadsOf({}, {});
  return GatherSections(*attempt.store->storage,
                        {.attempt = attempt.attempt,
                         .epoch = attempt.store->epoch,
                         .begin = {},
                         .end = {},
                         .reads = reads},
                        [&](RankBatch& batch) {
                          return AddChunks(batch, others, attempt.records, attempt.live_bytes);
                        });
}

/// Returns the tables of the base that the step keeps. Which tables are merged into the new one
/// follows from the number of chunks that the ranks have written and not reused.
Result<std::vector<TableInfo>> TablesToKeep(const StepAttempt& attempt) {
  if (!attempt.options.base_step) return std::vector<TableInfo>();
  CAIRN_TRY_ASSIGN(const StepEntryPtr base,
                   CurrentRoot(*attempt.store)->steps.Find(*attempt.options.base_step));
  if (base == nullptr) return std::vector<TableInfo>();  // the commit fails if chunks refer to it
  std::vector<uint64_t> record_counts;
  for (const TableInfo& table : base->tables) record_counts.push_back(table.total_record_count());
  const uint64_t written_chunks = attempt.chunk_count - attempt.reused_chunk_count;
  const size_t depth = MergeDepth(record_counts, written_chunks + 1);
  return std::vector<TableInfo>(base->tables.begin() + static_cast<ptrdiff_t>(depth),
                                base->tables.end());
}

/// Returns the result of a range. Returns the failure of a rank, or kUnavailable if the result is
/// missing at the deadline.
Result<RangeResult> AwaitResult(const StepAttempt& attempt, uint32_t range, uint32_t rank) {
  Storage& storage = *attempt.store->storage;
  Poll poll(attempt.options.deadline);
  while (true) {
    auto result = ReadResult(storage, attempt.HeaderOf(0), range);
    if (result) return result;
    const std::string path = ObjectPath(storage.address(), ResultName(attempt.attempt, range));
    if (result.error().code != ErrorCode::kNotFound) {
      Error error = std::move(result).error();
      error.message =
          fmt::format("the result of merging rank {} cannot be used: {}", rank, error.message);
      return Fail(std::move(error).WithFile(path));
    }
    if (auto failure = FindFailure(storage, attempt.attempt)) return Fail(*std::move(failure));
    if (!poll.Again()) {
      return Fail(Error{.code = ErrorCode::kUnavailable,
                        .message = fmt::format("rank {} had not merged its range of keys at the "
                                               "deadline; if it died, restart the job, otherwise "
                                               "allow more time",
                                               rank),
                        .file = path,
                        .step = attempt.step});
    }
  }
}

Result<void> AddResult(StepAttempt& attempt, uint32_t rank, const RangeTask& task,
                       const RangeResult& result, RankRecords& others) {
  if (result.table.record_count > 0) {
    // First, so that the table is removed if anything fails from here on.
    attempt.merged->ranges.push_back({.begin = TableKey(Column::kChunks, task.begin),
                                      .id = result.table.id,
                                      .file_bytes = result.table.file_bytes,
                                      .record_count = result.table.record_count,
                                      .digest = result.table.digest});
    if (result.table.id.epoch != attempt.store->epoch) {
      return Fail(ErrorCode::kDataLoss,
                  fmt::format("merging rank {} wrote a table of another epoch", rank));
    }
    CAIRN_TRY(CheckStored(*attempt.store->storage, ObjectName(ObjectKind::kTable, result.table.id),
                          result.table.file_bytes));
  }
  for (const auto& [segment_id, bytes] : result.uses) attempt.live_bytes.Add(segment_id, bytes);
  return others.AddSummary(rank, result.summary);
}

}  // namespace

Result<void> GatherRanges(StepAttempt& attempt, RankRecords& others) {
  CAIRN_TRY(attempt.SealSegments());
  CAIRN_TRY(attempt.part->Finish());
  SectionIndex index;
  CAIRN_TRY(PartGatherer(attempt, others, &index).AddAll());
  if (index.chunk_count() != attempt.chunk_count) {
    return Fail(ErrorCode::kDataLoss, fmt::format("the parts count {} chunks, their indexes {}",
                                                  attempt.chunk_count, index.chunk_count()));
  }
  const uint32_t count = MergingRankCount(attempt.options);
  if (index.chunk_count() < count * attempt.options.merging.min_chunks) {
    return MergeAlone(attempt, index, others);
  }

  CAIRN_TRY_ASSIGN(std::vector<TableInfo> kept, TablesToKeep(attempt));
  const std::vector<std::string> begins = index.Split(count);
  std::vector<RangeTask> tasks;
  for (uint32_t range = 0; range < begins.size(); ++range) {
    RangeTask& task = tasks.emplace_back();
    task.begin = begins[range];
    if (range + 1 < begins.size()) task.end = begins[range + 1];
    task.shared = attempt.shared_tensors;
    task.kept = kept;
    task.reads = index.ReadsOf(task.begin, task.end);
    CAIRN_TRY(PutTask(attempt.store->storage, attempt.HeaderOf(0), range, task));
    task.reads = {};
  }
  attempt.merged = MergedRanges{.ranges = {}, .kept = std::move(kept)};
  uint64_t chunk_count = 0;
  for (uint32_t range = 0; range < tasks.size(); ++range) {
    const uint32_t rank = MergingRanks{.count = count}.RankOf(range, attempt.options.world_size);
    CAIRN_TRY_ASSIGN(const RangeResult result, AwaitResult(attempt, range, rank));
    CAIRN_TRY(AddResult(attempt, rank, tasks[range], result, others));
    chunk_count += result.chunk_count;
  }
  if (chunk_count == attempt.chunk_count) return {};
  return Fail(ErrorCode::kDataLoss, fmt::format("the parts have {} chunks, the merging ranks {}",
                                                attempt.chunk_count, chunk_count));
}

}  // namespace cairn::kv::internal
