// Streams the records of an attempt, in the order of their keys, into the table of its step, and
// commits the root that refers to it.

#include "kv/commit/internal/step_commit.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <span>
#include <utility>

#include "kv/commit/internal/step_table_writer.h"
#include "kv/io/internal/fault_point.h"
#include "kv/io/internal/free_space.h"
#include "kv/state/internal/attempt_outcome.h"
#include "kv/state/internal/root_change.h"
#include "kv/storage/internal/concurrent_requests.h"

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
                                 OpenLikelyBase(*attempt.store);
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

}  // namespace

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
                       CAIRN_TRY(attempt.records.ForEachInOrder(
                           [&](const TableRecord& record) { return table.AddCounted(record); }));
                       CAIRN_TRY(attempt.SealSegments());  // before the table is durable
                       return table.Finish(entry);
                     });
}

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

void OpenLikelyBase(StoreState& state) {
  if (state.storage->transfer_sizes().small_requests <= 1) return;
  const auto base = CurrentRoot(state)->steps.Latest();
  if (base && *base != nullptr) (void)state.tables->OpenStack((*base)->tables);
}

}  // namespace cairn::kv::internal
