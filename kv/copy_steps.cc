// 1. Segments that the target lacks are copied, several at once. Finished ones are announced from
//    time to time (target_segments.h).
// 2. The records of the step are written to a table of the target, unchanged except for the segment
//    records and the usage, which name the epoch of the target's segments.
// 3. The commit of the step takes its segments off the list of announced objects.
//
// No name is written twice. A server may perform a PUT or a DELETE long after it was reported as
// failed, even after the process has ended, so a name that somebody has written, or tried to write
// or to remove, may be removed at any later time. Names of saves, compactions, tables and pages are
// random or contain the attempt. The name of a copied segment is <epoch>-<id>, with the id of its
// source, so it depends on the epoch whether it is new:
//
// a. Only one session has an epoch, because only one root has the number with which an epoch
//    begins. The session writes a name of the epoch only after this root.
// b. Copies of a session write under `copy_epoch`: the epoch of the session as long as it has saved
//    nothing, and otherwise one that it has taken for copies alone. Thus a segment that was saved
//    here, copied elsewhere, deleted and copied back has another name than before.
// c. Every id is recorded before its segment is created, and is not written again in the epoch,
//    whatever became of it: finished, failed, announced, damaged, or dropped by any commit. A copy
//    that needs it again takes the next epoch: it commits a root with the same steps, as an open
//    for writing does.
//
// No name that a root reaches is removed. A name becomes unreachable for good before its removal
// is first tried, so it does not matter when that is performed:
//
// d. A copy that fails removes a name that it has neither announced nor committed, and only it
//    knew. Where it is unknown whether a root was committed, nothing is removed.
// e. A copy adopts only what the newest root announces for at least another hour, in the commit of
//    the next root. Others try to remove such an object after a commit that has dropped it from
//    the list, and of both commits, one fails; or when its time has passed, which no other clock
//    reads an hour earlier (ADR 13).
// f. An open for writing removes what its own root neither reaches nor lists, of older epochs.
//    Roots after it can reach only what it reaches or lists, or what has a later epoch.
//
// If all roots and the objects of an epoch are lost, or an older backup is restored, a rebuild or
// an open may give an epoch for the second time. Then a copy in a directory finds that the file
// exists, and its repetition takes the next epoch.

#include "kv/copy_steps.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "kv/base/catch_exhaustion.h"
#include "kv/base/digest.h"
#include "kv/base/key.h"
#include "kv/base/mutex.h"
#include "kv/base/step_info.h"
#include "kv/commit/internal/step_table_writer.h"
#include "kv/io/internal/free_space.h"
#include "kv/io/worker_pool.h"
#include "kv/maintain/internal/segment_copy.h"
#include "kv/maintain/internal/target_segments.h"
#include "kv/read/internal/snapshot_state.h"
#include "kv/read/snapshot.h"
#include "kv/root/internal/kv_records.h"
#include "kv/root/internal/root_record.h"
#include "kv/state/internal/root_change.h"
#include "kv/state/internal/store_state.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv {
namespace internal {
namespace {

constexpr size_t kMaxCopiedIds = 100'000;  // limit per epoch: a mirror may run for months

/// Attempts have names that no other attempt has, in any store; the other members are a check.
bool IsSameStep(const StepInfo& a, const StepInfo& b) {
  return a.attempt == b.attempt && a.structure == b.structure &&
         a.created_unix_ns == b.created_unix_ns && a.logical_bytes == b.logical_bytes;
}

Error WrongRecords(uint64_t step, const char* message) {
  return {.code = ErrorCode::kDataLoss, .message = message, .step = step};
}

/// Returns the steps to copy, ascending; with CopyOptions::skip_lost, adds those that do not exist
/// to `report`. kNotFound: one of them does not exist.
Result<std::vector<StepInfo>> FindSteps(const Snapshot& source, const CopyOptions& options,
                                        CopyReport& report) {
  const std::set<uint64_t> numbers(options.steps.begin(), options.steps.end());
  std::vector<StepInfo> steps;
  for (const uint64_t number : numbers) {
    auto step = source.FindStep(number);
    if (step) {
      steps.push_back(*std::move(step));
    } else if (options.skip_lost && step.error().code == ErrorCode::kNotFound) {
      report.steps.push_back({.step = number, .outcome = CopiedStep::Outcome::kDeleted});
    } else {
      return Fail(std::move(step).error());
    }
  }
  return steps;
}

/// Copies steps of a source that others change in the meantime, one after another: the segments
/// that the target lacks, then the records. Threads: one; it starts others.
class StepCopier {
 public:
  /// All arguments outlive it, except `root`, which is one of `source`.
  StepCopier(Store& source, std::shared_ptr<const CommittedRoot> root, StoreState& target,
             const CopyOptions& options)
      : source_(source),
        target_(target),
        options_(options),
        throttle_(options.throttle != nullptr
                      ? options.throttle
                      : std::make_shared<Throttle>(options.max_bytes_per_second)),
        context_{.source = Use(std::move(root)),
                 .target = target,
                 .throttle = *throttle_,
                 .progress = [this](uint64_t bytes) { return ReportProgress(bytes); }},
        finished_(target, options) {}

  /// Removes segments that no step uses and that were not announced.
  ~StepCopier() {
    CleanUp([&] { finished_.RemoveUnannounced(); });
  }
  StepCopier(const StepCopier&) = delete;
  StepCopier& operator=(const StepCopier&) = delete;

  /// Copies one step of the source. Returns the errors of CopySteps.
  Result<CopiedStep> Copy(StepInfo step) {
    for (int attempt = 1;; ++attempt) {
      auto copied = CopyOnce(step);
      if (copied || copied.error().code != ErrorCode::kNotFound) return copied;
      // The newest root that the source knows is the snapshot's root, or a newer one.
      const auto latest = source_.Latest();
      if (!latest) return std::unexpected(copied.error());
      const auto found = (*latest)->FindStep(step.step);
      if (!found && found.error().code != ErrorCode::kNotFound) return copied;
      if (!found || found->generation != step.generation) {
        return CopiedStep{.step = NumberOf(step), .outcome = CopiedStep::Outcome::kDeleted};
      }
      if (found->HasRecordsOf(step) || attempt == kMaxAttempts) return copied;
      step = *found;  // a compaction has rewritten it
      const auto newer = CurrentRoot(StoreAccess::StateOf(source_));
      CAIRN_TRY(CheckCanWrite(newer->root.features, source_.storage().address()));
      context_.source = Use(newer);
    }
  }
  /// Keeps finished segments for the next copier, which copies them again if this fails. To be
  /// called after an error of Copy.
  Result<void> KeepFinished() { return finished_.Announce(); }

 private:
  using Segments = std::map<uint64_t, SegmentInfo>;  // by id
  static constexpr int kMaxAttempts = 8;

  const SnapshotState* Use(std::shared_ptr<const CommittedRoot> root) {
    view_ = std::make_unique<SnapshotState>(StoreAccess::StateOf(source_), std::move(root));
    return view_.get();
  }

  /// The number of the copy.
  uint64_t NumberOf(const StepInfo& step) const { return options_.into.value_or(step.step); }

  Result<CopiedStep> CopyOnce(const StepInfo& step) {
    CopiedStep copied{.step = NumberOf(step), .logical_bytes = step.logical_bytes};
    CAIRN_TRY_ASSIGN(const bool is_present, IsPresent(step));
    if (is_present) {
      copied.outcome = CopiedStep::Outcome::kPresent;
      return copied;
    }
    if (!known_) {
      CAIRN_TRY_ASSIGN(known_, TargetSegments::List(target_, finished_.announcement_count()));
    }
    CAIRN_TRY_ASSIGN(const auto open, context_.source->Open(step));
    CAIRN_TRY_ASSIGN(const Segments segments, SegmentsOf(*open));
    Segments in_target;
    CAIRN_TRY_ASSIGN(const auto missing, FindMissing(segments, in_target));
    copied.copied_segments = missing.size();
    copied.reused_segments = segments.size() - missing.size();
    for (const SegmentInfo& info : missing) copied.copied_bytes += info.file_bytes;
    {
      const MutexLock lock(mutex_);
      progress_ = {.step = step.step, .total_bytes = copied.copied_bytes};
      next_segment_ = 0;
    }
    CAIRN_TRY(ReportProgress(0));
    CAIRN_TRY(ReserveNames(missing));
    CAIRN_TRY(CopySegments(missing));
    for (auto& [id, info] : finished_.all()) {
      if (segments.contains(id)) in_target[id] = info;
    }
    CAIRN_TRY_ASSIGN(copied.table_bytes, Commit(*open, in_target));
    return copied;
  }

  /// kConflict: the target has the step with other contents, and they must not be replaced.
  Result<bool> IsPresent(const StepInfo& step) const {
    CAIRN_TRY_ASSIGN(const StepEntryPtr entry, CurrentRoot(target_)->steps.Find(NumberOf(step)));
    if (entry == nullptr) return false;
    if (IsSameStep(entry->info, step)) return true;
    if (options_.overwrite) return false;
    return Fail(Error{.code = ErrorCode::kConflict,
                      .hint = Hint::kOverwrite,
                      .message = "the target has a step with this number and other contents",
                      .file = target_.storage->address(),
                      .step = NumberOf(step)});
  }

  /// Returns the source's segments that the step uses.
  Result<Segments> SegmentsOf(const SnapshotState::OpenStep& step) const {
    CAIRN_TRY_ASSIGN(const auto usage, context_.source->UsageOf(step));
    Segments segments;
    for (const SegmentUse& use : usage) {
      auto info = ReadSegmentRecord(step.tables, use.segment.id);
      if (!info) return Fail(std::move(info).error().WithStep(step.entry->info.step));
      if (IdOf(*info) != use.segment) {
        return Fail(
            WrongRecords(step.entry->info.step, "the record of a segment is that of another one"));
      }
      segments.emplace(use.segment.id, *std::move(info));
    }
    return segments;
  }

  /// Returns the segments that must be copied, and adds the others to `found`.
  Result<std::vector<SegmentInfo>> FindMissing(const Segments& segments, Segments& found) {
    const Segments finished = finished_.all();
    std::vector<SegmentInfo> missing;
    for (const auto& [id, info] : segments) {
      const auto done = finished.find(id);  // with a step whose copy has failed
      if (done != finished.end() && done->second.id_tail == info.id_tail) continue;
      if (done != finished.end()) return Fail(OtherSegment(target_, info));
      CAIRN_TRY_ASSIGN(const auto known, known_->Find(info));
      if (!known) {
        missing.push_back(info);
      } else if (known->announced_age) {
        finished_.AddAnnounced(known->info, *known->announced_age);
      } else {
        found.emplace(id, known->info);
      }
    }
    return missing;
  }

  /// Makes sure that copies of these segments have names that nobody has written (see above).
  Result<void> ReserveNames(const std::vector<SegmentInfo>& missing) {
    if (missing.empty()) return {};
    if (!target_.copy_epoch) target_.copy_epoch = target_.epoch;
    std::set<uint64_t>& ids = target_.copied_ids;
    const bool is_shared = target_.copy_epoch == target_.epoch && target_.has_saved;
    const bool has_used = std::ranges::any_of(
        missing, [&](const SegmentInfo& info) { return ids.contains(info.segment_id); });
    if (is_shared || has_used || ids.size() > kMaxCopiedIds) CAIRN_TRY(finished_.TakeEpoch());
    for (const SegmentInfo& info : missing) ids.insert(info.segment_id);
    return {};
  }

  Result<void> CopySegments(const std::vector<SegmentInfo>& missing) {
    const size_t thread_count =
        std::clamp<size_t>(missing.size(), 1, std::max(options_.threads, 1u));
    CAIRN_TRY(RunOnThreads(thread_count, "a copy", [&](size_t) { return CopyNext(missing); }));
    LocalFiles* const files = target_.storage->local_files();
    if (missing.empty() || files == nullptr) return {};
    return files->SyncNames(ObjectFolder(ObjectKind::kSegment));
  }

  /// Copies segments until there are none left, or another thread has failed.
  Result<void> CopyNext(const std::vector<SegmentInfo>& missing) {
    while (true) {
      size_t index = 0;
      {
        const MutexLock lock(mutex_);
        if (next_segment_ >= missing.size()) return {};
        index = next_segment_++;
      }
      auto copied = CopySegment(context_, missing[index]);
      if (copied) {
        finished_.Add(*copied);
        if (const auto announced = finished_.AnnounceIfDue(); !announced) {
          copied = std::unexpected(announced.error());
        }
      }
      if (copied) continue;
      const MutexLock lock(mutex_);
      next_segment_ = missing.size();
      return Fail(std::move(copied).error());
    }
  }

  Result<void> ReportProgress(uint64_t bytes) {
    CAIRN_TRY(finished_.AnnounceIfDue());
    const MutexLock lock(mutex_);
    progress_.done_bytes += bytes;
    if (!options_.progress || options_.progress(progress_)) return {};
    return Fail(Error{.code = ErrorCode::kCancelled,
                      .message = "the copy was stopped; it continues when it is started again",
                      .step = progress_.step});
  }

  /// Commits the step. Returns the length of its table.
  Result<uint64_t> Commit(const SnapshotState::OpenStep& step, const Segments& segments) {
    const uint64_t number = NumberOf(step.entry->info);
    const bool replaces = CurrentRoot(target_)->steps.Contains(number);
    CAIRN_TRY_ASSIGN(const StepEntry entry,
                     CommitLocked(step, segments, finished_.announcement_count()));
    std::vector<SegmentUse> usage;
    for (const auto& [id, info] : segments) {
      usage.push_back({.segment = IdOf(info)});
    }
    finished_.Release(usage);
    known_->AddStep(number, usage);
    if (replaces) known_.reset();  // the step that it replaced used others
    return entry.tables.front().file_bytes;
  }

  Result<StepEntry> CommitLocked(const SnapshotState::OpenStep& step, const Segments& segments,
                                 uint64_t announcement_count) {
    // Until the root is committed, no delete may remove a segment to which the records refer.
    const MutexLock write_lock(target_.write_mutex);
    CAIRN_TRY(CheckCanCommit(target_));
    if (!known_->IsCurrent(announcement_count)) {
      return Fail(Error{.code = ErrorCode::kConflict,
                        .message = "another thread has changed the target during the copy",
                        .file = target_.storage->address(),
                        .step = step.entry->info.step});
    }
    std::vector<std::string> names;
    for (const auto& [id, info] : segments) names.push_back(SegmentObject(info));
    const auto commit = [&]() -> Result<StepEntry> {
      CAIRN_TRY_ASSIGN(StepEntry entry, WriteTable(step, segments));
      CAIRN_TRY(CommitNewStep(target_, entry, {.adopted = names}));
      return entry;
    };
    return WithSpace([this](uint64_t& seen) { return FreeSpaceForCommit(target_, seen); }, commit);
  }

  /// Writes the table of a step whose segments in the target are `segments`.
  Result<StepEntry> WriteTable(const SnapshotState::OpenStep& step, const Segments& segments) {
    CAIRN_TRY_ASSIGN(std::vector<SegmentUse> usage, context_.source->UsageOf(step));
    StepEntry entry{.info = step.entry->info};
    const uint64_t number = entry.info.step;  // in the source
    entry.info.step = NumberOf(entry.info);
    // In the target, the number of its base would name another step.
    if (entry.info.step != number) entry.info.base_step.reset();
    const auto current = CurrentRoot(target_);
    entry.info.generation = current->root.number + 1;
    entry.info.rewritten = 0;
    StepEntryPtr base;
    if (const auto base_step = known_->FindBase(usage)) {
      CAIRN_TRY_ASSIGN(base, current->steps.Find(*base_step));
    }
    CAIRN_TRY_ASSIGN(StepTableWriter table,
                     StepTableWriter::Create(target_, base.get(), entry.info));
    uint64_t chunk_count = 0;
    Digest structure;
    CAIRN_TRY(step.tables.ScanContents(
        [&](std::string_view key, std::span<const std::byte> value) -> Result<bool> {
          const TableRecord record{.key = key, .value = value};
          if (record.column() == Column::kChunks) ++chunk_count;
          if (record.column() == Column::kStructures) structure = PayloadDigest(value);
          CAIRN_TRY(table.Add(record));
          return true;
        }));
    if (chunk_count != entry.info.chunk_count || structure != entry.info.structure) {
      return Fail(WrongRecords(number, "the tables do not contain the records of the step"));
    }
    for (const auto& [id, info] : segments) {
      CAIRN_TRY(table.Add(
          {.key = TableKey(Column::kSegments, NumberKey(id)), .value = EncodeSegment(info)}));
    }
    CAIRN_TRY(table.Finish(entry));
    return entry;
  }

  Store& source_;
  StoreState& target_;
  const CopyOptions& options_;
  std::unique_ptr<SnapshotState> view_;  // what the source contains
  const std::shared_ptr<Throttle> throttle_;
  CopyContext context_;
  FinishedSegments finished_;
  std::optional<TargetSegments> known_;  // nothing: must be listed

  Mutex mutex_;
  CopyProgress progress_ CAIRN_GUARDED_BY(mutex_);
  size_t next_segment_ CAIRN_GUARDED_BY(mutex_) = 0;
};

}  // namespace
}  // namespace internal

Result<CopyReport> CopySteps(Store& source, Store& target, const CopyOptions& options) {
  CAIRN_TRY_ASSIGN(const auto snapshot, source.Latest());
  CopyReport report;
  CAIRN_TRY_ASSIGN(const std::vector<StepInfo> steps,
                   internal::FindSteps(*snapshot, options, report));
  if (options.into && steps.size() != 1) {
    return Fail(ErrorCode::kInvalidArgument, "only one step can be copied to another number");
  }
  const auto root = internal::CurrentRoot(
      internal::StoreAccess::StateOf(source));  // that of the snapshot, or a newer one
  // The target does not list the features of the source, which its records may need.
  const std::string& source_address = source.storage().address();
  CAIRN_TRY(
      internal::CheckCanWrite(internal::StoreAccess::StateOf(source).features, source_address));
  CAIRN_TRY(internal::CheckCanWrite(root->root.features, source_address));
  internal::StoreState& state = internal::StoreAccess::StateOf(target);
  CAIRN_TRY_ASSIGN(const auto turn,
                   internal::Turn::Take(state, state.step_writer_alive, "copy steps to it",
                                        "a save or another copy of the target is still running; "
                                        "wait for it"));
  internal::StepCopier copies(source, root, state, options);
  for (const StepInfo& step : steps) {
    auto copied = copies.Copy(step);
    if (!copied && options.skip_lost && copied.error().code == ErrorCode::kDataLoss &&
        !state.outcome_unknown) {
      report.damaged.push_back(std::move(copied).error().WithStep(step.step));
      continue;
    }
    if (!copied) {
      const auto kept = copies.KeepFinished();
      Error error = internal::ExplainFailure(state, std::move(copied).error());
      // The target must be opened again.
      if (!kept && state.outcome_unknown) error.message += "; " + kept.error().message;
      return Fail(std::move(error).WithStep(step.step));
    }
    report.steps.push_back(*copied);
  }
  std::ranges::sort(report.steps, {}, &CopiedStep::step);
  return report;
}

}  // namespace cairn::kv
