#pragma once
/// The contents of a snapshot.
///
/// A snapshot has the root that was the newest one when it was taken. Objects that later roots do
/// not name are removed when their grace period has passed, so an object may be absent:
///
/// 1. The newest root names it as well: kDataLoss.
/// 2. The newest root has the step with other tables, because a compaction has rewritten it, or
///    with another page of the list of steps: what is read of records continues there. Payload
///    cannot, because its caller has old extents: kNotFound, and the caller reads them again.
/// 3. The newest root does not have the step: kNotFound.
///
/// The object is looked for before the newest root is read. A root that names an object is not
/// followed by its removal before a root that does not, so 1 is never a reader that is too slow.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kv/base/mutex.h"
#include "kv/base/step_info.h"
#include "kv/root/internal/root_record.h"
#include "kv/segment/internal/segment_files.h"
#include "kv/state/internal/store_state.h"
#include "kv/storage/internal/object_names.h"
#include "kv/table/internal/table_reader.h"

namespace cairn::kv::internal {

/// Threads: const members are safe.
class SnapshotState {
 public:
  SnapshotState(const StoreState& store, std::shared_ptr<const CommittedRoot> root);

  /// A step, opened for reading.
  struct OpenStep {
    StepEntryPtr entry;
    TableStack tables;
  };
  /// Opens the tables of a step that the snapshot contains, or the tables that have replaced them.
  /// kNotFound: the step has been deleted, and its grace period has passed. kDataLoss: it is
  /// damaged.
  Result<std::shared_ptr<const OpenStep>> Open(const StepInfo& step) const;
  /// Calls `visit` with the records of a step from `first_key` on whose keys in the tables begin
  /// with `prefix`, in order. Returns the errors of Open and of `visit`.
  Result<void> Scan(const StepInfo& step, std::string_view first_key, std::string_view prefix,
                    const TableStack::Visit& visit) const;
  /// Returns the record with this key in the tables of a step. Returns the errors of Open.
  Result<std::optional<std::vector<std::byte>>> Get(const StepInfo& step,
                                                    std::string_view key) const;
  /// Returns the entry of a step; null if the snapshot does not contain it. kNotFound: the step was
  /// deleted or overwritten since. kDataLoss: the page that lists it is missing or damaged.
  Result<StepEntryPtr> FindEntry(uint64_t step) const;
  /// Returns the entries of all steps, except for those that were deleted or overwritten since if a
  /// page that lists them was removed.
  Result<std::vector<StepEntryPtr>> AllEntries() const;
  /// kNotFound: the segment was removed with a step that was deleted. kDataLoss: it is missing, or
  /// no step uses it.
  Result<std::shared_ptr<const SegmentFile>> OpenSegment(uint64_t segment_id) const;
  /// Returns the full name of a segment that some step uses. kDataLoss: no step uses it.
  Result<ObjectId> FindSegment(uint64_t segment_id) const;
  /// Returns the segments that a step uses.
  Result<std::vector<SegmentUse>> UsageOf(const OpenStep& step) const;
  /// Returns the records of these segments, ascending by id. Returns the errors of Scan.
  Result<std::vector<SegmentInfo>> SegmentsOf(const StepInfo& step) const;
  /// Returns the error for an object that is absent, which `missing.file` names: kNotFound if no
  /// step uses it any more, because its steps were deleted or compacted, and otherwise kDataLoss.
  Error Explain(Error missing) const;

  const std::shared_ptr<Storage> storage;
  const StoreOptions options;
  const Uuid uuid;
  const std::shared_ptr<const CommittedRoot> root;
  const std::shared_ptr<BlockPool> read_pool;
  const std::shared_ptr<FileQueues> queues;
  const std::shared_ptr<SegmentFiles> files;
  const std::shared_ptr<OpenTables> tables;

 private:
  using OpenStepPtr = std::shared_ptr<const OpenStep>;

  /// Returns what `look` returns for the newest root. If that is kNotFound, because what the root
  /// names was removed in the meantime, tries the next newest one. kDataLoss: it is missing, or the
  /// store has no roots any more.
  template <typename Look>
  auto InNewestRoot(const Look& look) const -> decltype(look(Root()));
  /// Returns whether `root` names the page, or a step of it uses the table or segment. kNotFound:
  /// the root names an object that is missing.
  Result<bool> IsUsedBy(const Root& root, const ParsedObjectName& object) const;
  /// Returns the entry that the newest root has of a step; null if the step was deleted or
  /// overwritten.
  Result<StepEntryPtr> NewestEntry(const StepInfo& step) const;
  /// Opens the tables of an entry of `step`, or the tables that have replaced them.
  Result<OpenStepPtr> OpenEntry(const StepInfo& step, StepEntryPtr entry) const;
  /// Returns the entry whose tables have replaced the tables of `stale`, of which one is missing.
  Result<StepEntryPtr> FindReplacement(const StepInfo& step, const StepEntry& stale,
                                       Error missing) const;
  Result<void> NoteSegments(const OpenStep& step) const;
  std::optional<ObjectId> KnownSegment(uint64_t segment_id) const;

  mutable Mutex mutex_;
  mutable std::map<uint64_t, std::shared_ptr<const OpenStep>> open_ CAIRN_GUARDED_BY(mutex_);
  mutable std::unordered_map<uint64_t, ObjectId> segments_ CAIRN_GUARDED_BY(mutex_);
};

/// Explains the error of an operation of a writer, which reads through no snapshot: kDataLoss if a
/// page, table or segment that the newest root reaches is absent. Returns other errors unchanged.
Error ExplainAbsence(const StoreState& store, Error error);
/// Explains the error of a change: kConflict if another writer has taken over, which may have
/// removed this writer's objects, and otherwise as ExplainAbsence. Returns the error unchanged if
/// it is unknown whether a commit has happened.
Error ExplainFailure(StoreState& store, Error error);

}  // namespace cairn::kv::internal
