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

#include "kv/maintain/internal/step_copy.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "kv/base/catch_exhaustion.h"
#include "kv/base/digest.h"
#include "kv/base/key.h"
#include "kv/commit/internal/step_table_writer.h"
#include "kv/io/internal/free_space.h"
#include "kv/io/worker_pool.h"
#include "kv/root/internal/kv_records.h"
#include "kv/state/internal/root_change.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {
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

}  // namespace

StepCopier::StepCopier(const SnapshotState& source, StoreState& target, const CopyOptions& options)
    : target_(target),
      options_(options),
      throttle_(options.throttle != nullptr
                    ? options.throttle
                    : std::make_shared<Throttle>(options.max_bytes_per_second)),
      context_{.source = &source,
               .target = target,
               .throttle = *throttle_,
               .progress = [this](uint64_t bytes) { return ReportProgress(bytes); }},
      finished_(target, options) {}

StepCopier::~StepCopier() {
  CleanUp([&] { finished_.RemoveUnannounced(); });
}

Result<CopiedStep> StepCopier::Copy(const StepInfo& step) {
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
Result<bool> StepCopier::IsPresent(const StepInfo& step) const {
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
Result<StepCopier::Segments> StepCopier::SegmentsOf(const SnapshotState::OpenStep& step) const {
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
Result<std::vector<SegmentInfo>> StepCopier::FindMissing(const Segments& segments,
                                                         Segments& found) {
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
Result<void> StepCopier::ReserveNames(const std::vector<SegmentInfo>& missing) {
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

Result<void> StepCopier::CopySegments(const std::vector<SegmentInfo>& missing) {
  const size_t thread_count = std::clamp<size_t>(missing.size(), 1, std::max(options_.threads, 1u));
  CAIRN_TRY(RunOnThreads(thread_count, "a copy", [&](size_t) { return CopyNext(missing); }));
  LocalFiles* const files = target_.storage->local_files();
  if (missing.empty() || files == nullptr) return {};
  return files->SyncNames(ObjectFolder(ObjectKind::kSegment));
}

/// Copies segments until there are none left, or another thread has failed.
Result<void> StepCopier::CopyNext(const std::vector<SegmentInfo>& missing) {
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

Result<void> StepCopier::ReportProgress(uint64_t bytes) {
  CAIRN_TRY(finished_.AnnounceIfDue());
  const MutexLock lock(mutex_);
  progress_.done_bytes += bytes;
  if (!options_.progress || options_.progress(progress_)) return {};
  return Fail(Error{.code = ErrorCode::kCancelled,
                    .message = "the copy was stopped; it continues when it is started again",
                    .step = progress_.step});
}

/// Commits the step. Returns the length of its table.
Result<uint64_t> StepCopier::Commit(const SnapshotState::OpenStep& step, const Segments& segments) {
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

Result<StepEntry> StepCopier::CommitLocked(const SnapshotState::OpenStep& step,
                                           const Segments& segments, uint64_t announcement_count) {
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
Result<StepEntry> StepCopier::WriteTable(const SnapshotState::OpenStep& step,
                                         const Segments& segments) {
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
  CAIRN_TRY_ASSIGN(StepTableWriter table, StepTableWriter::Create(target_, base.get(), entry.info));
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

}  // namespace cairn::kv::internal
