// Adds payload and records to one part. A commit streams the records, in the order of their keys,
// into the table of the step, and puts the root that refers to it.

#include "kv/step_writer.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <utility>

#include "kv/commit/internal/rank_parts.h"
#include "kv/commit/internal/step_attempt.h"
#include "kv/commit/internal/step_table_writer.h"
#include "kv/io/internal/fault_point.h"
#include "kv/io/internal/free_space.h"
#include "kv/read/internal/snapshot_state.h"
#include "kv/root/internal/kv_records.h"
#include "kv/state/internal/attempt_outcome.h"
#include "kv/state/internal/root_change.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {
namespace {

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

/// Returns the entry of a step to which the attempt refers. kConflict: it was deleted or replaced.
/// Requires write_mutex.
Result<StepEntryPtr> FindUnchanged(const StepAttempt& attempt, const StepInfo& step) {
  CAIRN_TRY_ASSIGN(StepEntryPtr entry, CurrentRoot(*attempt.store)->steps.Find(step.step));
  if (entry == nullptr || entry->info.generation != step.generation) {
    return Fail(BaseReplacedError(attempt.step));
  }
  return entry;
}

/// Sets the parent and the run of the step, and its time, which orders the steps: whatever the
/// clock says, it is not before that of its parent and of the steps that the root lists. A derived
/// step is not saved later than its source.
Result<void> SetDescent(const StepAttempt& attempt, StepInfo& info) {
  const std::optional<StepInfo>& parent = attempt.continuation.step;
  const auto root = CurrentRoot(*attempt.store);
  const StepList& steps = root->steps;
  int64_t last_saved = parent ? parent->created_unix_ns : 0;
  if (attempt.options.is_derived) {
    info.created_unix_ns = last_saved;
  } else {
    for (const auto& step : steps.recent()) {
      last_saved = std::max(last_saved, step->info.created_unix_ns);
    }
    if (info.created_unix_ns <= last_saved) {
      info.created_unix_ns =
          last_saved + (last_saved < std::numeric_limits<int64_t>::max() ? 1 : 0);
    }
  }
  if (parent) {
    info.run = parent->run;
    info.parent = ParentStep{.step = parent->step, .attempt = parent->attempt};
    if (parent->step == info.step) info.parent = parent->parent;  // it is replaced
  }
  CAIRN_TRY_ASSIGN(const StepEntryPtr replaced, steps.Find(info.step));
  const bool goes_on = parent && parent->step < info.step;
  if (replaced != nullptr && !attempt.options.parent && !goes_on) {
    info.run = replaced->info.run;
    info.parent = replaced->info.parent;
  }
  if (attempt.options.run) info.run = attempt.options.run;
  if (!info.run) info.run = NewUuid();
  return {};
}

/// Records that the step is committed, and tells the other ranks.
void ReportCommitted(const StepAttempt& attempt, uint64_t generation) {
  StoreState& state = *attempt.store;
  {
    const MutexLock lock(state.mutex);
    state.committed_attempt = attempt.attempt;
  }
  if (!attempt.has_ranks()) return;
  // A rank that does not receive this finds the step in the root when its deadline passes.
  (void)PublishCommitted(*state.storage, attempt.attempt, generation);
}

/// Adds the records of all payload. If files are not far behind, their last bytes are written while
/// CommitStep builds the table. Other segments are sealed here, because other commits wait during
/// the rest of CommitStep.
Result<void> EndPayload(StepAttempt& attempt) {
  const Storage& storage = *attempt.store->storage;
  const bool is_local = attempt.store->storage->local_files() != nullptr;
  if (is_local && !attempt.segments.runs_ahead()) return attempt.segments.Finish();
  return RunRequests(storage, {[&] { return attempt.SealSegments(); },
                               [&] {
                                 attempt.OpenLikelyBase();
                                 return Result<void>();
                               }});
}

/// Writes the table of the step, as `finish` does, and commits. Requires write_mutex.
using FinishTable = std::function<Result<void>(StepTableWriter&, StepEntry&)>;
Result<StepInfo> CommitTableOnce(StepAttempt& attempt, const StepSummary& summary,
                                 const StepEntry* base, const FinishTable& finish) {
  StoreState& state = *attempt.store;
  StepEntry entry{.info = attempt.InfoOf(summary)};
  entry.info.generation = CurrentRoot(state)->root.number + 1;
  CAIRN_TRY(SetDescent(attempt, entry.info));
  CAIRN_TRY_ASSIGN(StepTableWriter table, StepTableWriter::Create(state, base, entry.info));
  CAIRN_TRY(finish(table, entry));
  TagChanges tags;
  for (const std::string& tag : attempt.options.tags) tags[tag] = attempt.step;
  CAIRN_TRY(
      CommitNewStep(state, entry, {.tags = &tags, .applies_retention = true, .committed = [&] {
                                     ReportCommitted(attempt, entry.info.generation);
                                   }}));
  attempt.finished = true;  // the step exists, so its objects must not be removed any more
  attempt.failed = false;
  {
    const MutexLock lock(state.mutex);
    Continuation& next = state.continuation;
    const bool continues =
        !attempt.options.is_derived || (next.step && next.step->step == entry.info.step);
    // A load after the begin of the save is what the next step continues from.
    if (continues && next.load_count == attempt.continuation.load_count) {
      next.step = WithoutAnnotations(entry.info);
    }
  }
  (void)FaultPoint("commit.done");
  return entry.info;
}

/// As CommitTableOnce. If the disk is full, removes what is due, and writes another table: the
/// records may refer to a segment that was due.
Result<StepInfo> CommitTable(StepAttempt& attempt, const StepSummary& summary,
                             const StepEntry* base, const FinishTable& finish) {
  const auto free_space = [&](uint64_t& seen) {
    return attempt.seal_failed() ? "" : attempt.FreeSpaceFor(seen);
  };
  return WithSpace(free_space, [&] { return CommitTableOnce(attempt, summary, base, finish); });
}

/// Adds the records of the attempt, with the structure in its place in the order of columns.
Result<void> AddRecords(StepAttempt& attempt, StepTableWriter& table) {
  std::span<const std::byte> structure = attempt.structure_record;
  const auto add_structure = [&] {
    const auto record = std::exchange(structure, {});
    return table.AddCounted({.key = ColumnPrefix(Column::kStructures), .value = record});
  };
  CAIRN_TRY(attempt.records.ForEachInOrder([&](const TableRecord& record) -> Result<void> {
    if (record.column() > Column::kStructures && !structure.empty()) CAIRN_TRY(add_structure());
    return table.AddCounted(record);
  }));
  return structure.empty() ? Result<void>() : add_structure();
}

/// See StepWriter::Commit.
Result<StepInfo> CommitStep(StepAttempt& attempt, const StepSummary& summary) {
  StoreState& state = *attempt.store;
  CAIRN_TRY(EndPayload(attempt));
  // Until the root is committed, no delete may remove a segment to which the records refer.
  const MutexLock write_lock(state.write_mutex);
  attempt.committing = true;
  CAIRN_TRY(CheckCanCommit(state));
  if (attempt.has_ranks() && std::chrono::steady_clock::now() > attempt.options.deadline) {
    return Fail(Error{.code = ErrorCode::kUnavailable,
                      .message = "the deadline passed before the commit; allow more time",
                      .step = attempt.step});
  }
  CAIRN_TRY_ASSIGN(const StepEntryPtr base, FindBase(attempt, summary));
  return CommitTable(attempt, summary, base.get(),
                     [&](StepTableWriter& table, StepEntry& entry) -> Result<void> {
                       for (const StepInfo& step : attempt.referred_steps) {
                         CAIRN_TRY_ASSIGN(const StepEntryPtr other, FindUnchanged(attempt, step));
                         CAIRN_TRY(table.AddSegmentsOf(*other));
                       }
                       table.AddUses(attempt.live_bytes);
                       CAIRN_TRY(attempt.segments.BeginSeal());
                       const Result<void> added = AddRecords(attempt, table);
                       CAIRN_TRY(attempt.SealSegments());  // before the table is durable
                       CAIRN_TRY(added);
                       return table.Finish(entry);
                     });
}

/// See StepWriter::CommitSame.
Result<StepInfo> CommitSameStep(StepAttempt& attempt, const StepInfo& base_info) {
  StoreState& state = *attempt.store;
  const MutexLock write_lock(state.write_mutex);  // as in CommitStep
  attempt.committing = true;
  CAIRN_TRY(CheckCanCommit(state));
  CAIRN_TRY_ASSIGN(const StepEntryPtr base, FindUnchanged(attempt, base_info));
  attempt.chunk_count = base->info.chunk_count;
  attempt.reused_chunk_count = base->info.chunk_count;
  attempt.structure = base->info.structure;
  const StepSummary summary{.base_step = base->info.step,
                            .tensor_count = base->info.tensor_count,
                            .value_count = base->info.value_count,
                            .logical_bytes = base->info.logical_bytes};
  return CommitTable(attempt, summary, base.get(), [&](StepTableWriter& table, StepEntry& entry) {
    return table.FinishSame(*base, entry);
  });
}

}  // namespace
}  // namespace cairn::kv::internal

namespace cairn::kv {

using internal::StepAttempt;

namespace {

/// Another writer may have removed what this one has written or waits for. Then its name is the
/// better error.
template <typename T>
Result<T> NameOtherWriter(const StepAttempt& attempt, Result<T> result) {
  if (result) return result;
  return Fail(
      internal::ExplainFailure(*attempt.store, std::move(result).error()).WithStep(attempt.step));
}

/// kFailedPrecondition: the call is not one that may follow those before (kv/step_writer.h).
Result<void> CheckOrder(const StepAttempt& attempt, bool is_in_order, const char* requirement) {
  if (is_in_order) return {};
  return Fail(
      Error{.code = ErrorCode::kFailedPrecondition, .message = requirement, .step = attempt.step});
}

Error Invalid(const StepAttempt& attempt, const char* message) {
  return {.code = ErrorCode::kInvalidArgument, .message = message, .step = attempt.step};
}

bool IsRankZeroOfSeveral(const StepAttempt& attempt) {
  return attempt.has_ranks() && !attempt.store->joined;
}

/// Performs `work`. If it fails, the attempt cannot be committed: a chunk may have been appended in
/// part.
template <typename Work>
auto Perform(StepAttempt& attempt, const Work& work) -> decltype(work()) {
  attempt.failed = true;
  auto result = work();
  attempt.failed = !result;
  return result;
}

Result<void> CheckPageBits(const StepAttempt& attempt, uint8_t page_bits) {
  if (page_bits >= kMinPageBits && page_bits <= kMaxPageBits) return {};
  return Fail(Invalid(attempt, "a page has 4 KiB to 1 MiB"));
}

/// kInvalidArgument: `page_digests` do not match the payload.
Result<void> CheckPageDigests(const StepAttempt& attempt, const Payload& payload,
                              std::span<const uint64_t> page_digests, uint8_t page_bits) {
  if (page_digests.size() == PageCount(payload.length_bytes(), uint64_t{1} << page_bits)) return {};
  return Fail(Invalid(attempt, "a payload needs one digest per page"));
}

}  // namespace

StepWriter::StepWriter(std::unique_ptr<StepAttempt> attempt) : attempt_(std::move(attempt)) {}

StepWriter::~StepWriter() {
  // In a forked child, the files and threads of the attempt belong to the parent.
  if (attempt_ != nullptr && !internal::CheckNotForked(*attempt_->store)) (void)attempt_.release();
}

uint64_t StepWriter::written_bytes() const { return attempt_->segments.written_bytes(); }

// --- payload

Result<void> StepWriter::UseBlocks(std::shared_ptr<BlockPool> blocks) {
  CAIRN_TRY(attempt_->CheckUsable());
  CAIRN_TRY(CheckOrder(*attempt_, blocks != nullptr && !attempt_->segments.runs_ahead(),
                       "other blocks can be used once per step"));
  return Perform(*attempt_, [&] { return attempt_->segments.UseBlocks(std::move(blocks)); });
}

Result<StepWriter::Appended> StepWriter::Append(const Payload& payload, SegmentAlignment alignment,
                                                std::span<const uint64_t> page_digests,
                                                uint8_t page_bits) {
  CAIRN_TRY(attempt_->CheckUsable());
  CAIRN_TRY(CheckPageBits(*attempt_, page_bits));
  if (payload.length_bytes() == 0) return Fail(Invalid(*attempt_, "a chunk must have bytes"));
  if (!page_digests.empty() || payload.queue() != nullptr) {
    CAIRN_TRY(CheckPageDigests(*attempt_, payload, page_digests, page_bits));
  }
  CAIRN_TRY_ASSIGN(const auto appended, Perform(*attempt_, [&] {
                     return attempt_->segments.Append(payload, alignment, page_digests, page_bits);
                   }));
  return Appended{.extent = appended.extent, .digest = appended.digest};
}

Result<std::vector<Extent>> StepWriter::AppendPages(const Payload& payload,
                                                    std::span<const PageRange> ranges,
                                                    std::span<const uint64_t> page_digests,
                                                    uint8_t page_bits) {
  CAIRN_TRY(attempt_->CheckUsable());
  CAIRN_TRY(CheckPageBits(*attempt_, page_bits));
  CAIRN_TRY(CheckPageDigests(*attempt_, payload, page_digests, page_bits));
  uint64_t end_page = 0;
  for (const PageRange& range : ranges) {
    if (range.begin_page < end_page || range.begin_page >= range.end_page ||
        range.end_page > page_digests.size()) {
      return Fail(Invalid(*attempt_, "ranges of pages must not be empty, and must ascend"));
    }
    end_page = range.end_page;
  }
  return Perform(*attempt_, [&] {
    return attempt_->segments.AppendPages(payload, ranges, page_digests, page_bits);
  });
}

Result<void> StepWriter::Drain() {
  CAIRN_TRY(attempt_->CheckUsable());
  return Perform(*attempt_, [&] { return attempt_->segments.Drain(); });
}

// --- records

Result<void> StepWriter::AddRecord(Column column, std::string_view key,
                                   std::span<const std::byte> record) {
  CAIRN_TRY(attempt_->CheckUsable());
  if (column != Column::kTensors && column != Column::kValues && column != Column::kApplication) {
    return Fail(Invalid(*attempt_, "records of this kind cannot be added"));
  }
  if (column == Column::kTensors) {
    const internal::TableRecord tensor = attempt_->segments.SetTensor(key, record);
    const bool is_for_step = !attempt_->has_ranks() || attempt_->gathered;
    return is_for_step ? attempt_->AddEntry(tensor) : Result<void>();
  }
  return attempt_->AddEntry(column, key, record);
}

Result<void> StepWriter::AddChunk(std::string_view key, const ChunkEntry& entry, bool reused) {
  StepAttempt& attempt = *attempt_;
  CAIRN_TRY(attempt.CheckUsable());
  bool is_appended = false;
  entry.extents.ForEach([&](const Extent& extent) {
    is_appended = is_appended || attempt.segments.IsCurrent(extent.segment_id);
  });
  CAIRN_TRY(CheckOrder(attempt, reused || is_appended,
                       "a chunk must be added before the next one is appended"));
  ++attempt.chunk_count;
  attempt.live_bytes.Add(entry.extents);
  if (reused) {
    ++attempt.reused_chunk_count;
    return attempt.AddEntry(Column::kChunks, key, attempt.chunk_encoder.Encode(entry));
  }
  // The offset of its page digests is known only when the segment is sealed.
  attempt.segments.AddChunk(key, entry);
  return {};
}

bool StepWriter::IsInCurrentSegment(const ChunkExtents& extents) const {
  bool is_here = true;
  extents.ForEach([&](const Extent& extent) {
    is_here = is_here && attempt_->segments.IsCurrent(extent.segment_id);
  });
  return is_here;
}

void StepWriter::ReferTo(const StepInfo& step) { attempt_->referred_steps.push_back(step); }

Result<void> StepWriter::AddShared(std::span<const SharedRecord> records) {
  CAIRN_TRY(attempt_->CheckUsable());
  CAIRN_TRY(CheckOrder(*attempt_, attempt_->has_ranks() && !attempt_->gathered,
                       "only several ranks have shared records, and only before Gather"));
  return internal::AddSharedRecords(*attempt_, records);
}

Result<void> StepWriter::SetStructure(std::span<const std::byte> record) {
  CAIRN_TRY(attempt_->CheckUsable());
  const bool is_first = !attempt_->has_structure && !attempt_->store->joined;
  CAIRN_TRY(CheckOrder(*attempt_, is_first && !record.empty(),
                       "rank 0 sets the structure of a step once"));
  attempt_->structure = PayloadDigest(record);
  attempt_->structure_record.assign(record.begin(), record.end());
  attempt_->has_structure = true;
  return {};
}

// --- communication with the other ranks

Result<void> StepWriter::Gather(RankRecords& others) {
  CAIRN_TRY(attempt_->CheckUsable());
  CAIRN_TRY(CheckOrder(*attempt_, IsRankZeroOfSeveral(*attempt_) && !attempt_->gathered,
                       "in a multi-rank store, rank 0 gathers the parts once"));
  return NameOtherWriter(*attempt_, internal::GatherParts(*attempt_, others));
}

Result<void> StepWriter::Prepare(const StepSummary& summary) {
  CAIRN_TRY(attempt_->CheckUsable());
  CAIRN_TRY(CheckOrder(*attempt_, attempt_->store->joined,
                       "rank 0 commits the step; only the other ranks prepare parts of it"));
  return internal::PreparePart(*attempt_, summary);
}

Result<StepInfo> StepWriter::AwaitDecision() {
  CAIRN_TRY(CheckOrder(*attempt_, attempt_->store->joined && attempt_->finished,
                       "a rank awaits the decision of rank 0 after it has prepared its part"));
  CAIRN_TRY_ASSIGN(attempt_->prepared.generation, internal::AwaitGeneration(*attempt_));
  return attempt_->prepared;
}

// --- commit

Result<StepInfo> StepWriter::Commit(const StepSummary& summary) {
  StepAttempt& attempt = *attempt_;
  CAIRN_TRY(attempt.CheckUsable());
  CAIRN_TRY(CheckOrder(attempt, !attempt.store->joined && attempt.gathered == attempt.has_ranks(),
                       "rank 0 commits the step, after it has gathered the parts of other ranks"));
  CAIRN_TRY(CheckOrder(attempt, attempt.has_structure, "the step has no structure yet"));
  attempt.failed = true;
  return NameOtherWriter(attempt, internal::CommitStep(attempt, summary));
}

Result<StepInfo> StepWriter::CommitSame(const StepInfo& base) {
  StepAttempt& attempt = *attempt_;
  CAIRN_TRY(attempt.CheckUsable());
  CAIRN_TRY(CheckOrder(attempt,
                       !attempt.has_ranks() && !attempt.has_structure && attempt.chunk_count == 0 &&
                           attempt.written_bytes() == 0,
                       "one rank commits a copy of a step, to which it has added nothing"));
  attempt.failed = true;
  return NameOtherWriter(attempt, internal::CommitSameStep(attempt, base));
}

}  // namespace cairn::kv
