#pragma once
/// The contents of a snapshot.

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>

#include "kv/internal/commit/store_state.h"
#include "kv/internal/root/root_record.h"
#include "kv/internal/segment/segment_files.h"
#include "kv/internal/storage/object_names.h"
#include "kv/internal/table/table_stack.h"
#include "kv/mutex.h"
#include "kv/step_info.h"
#include "kv/thread_annotations.h"

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
  /// Opens the tables of a step that the snapshot contains. kNotFound: the step has been deleted,
  /// and its grace period has passed. kDataLoss: it is damaged.
  Result<std::shared_ptr<const OpenStep>> Open(const StepInfo& step) const;
  /// kNotFound: the segment was removed with a step that was deleted. kDataLoss: it is missing, or
  /// no step uses it.
  Result<std::shared_ptr<const SegmentFile>> OpenSegment(uint64_t segment_id) const;
  /// Returns the full name of a segment that some step uses. kDataLoss: no step uses it.
  Result<ObjectId> FindSegment(uint64_t segment_id) const;
  /// Returns the segments that a step uses.
  Result<std::vector<SegmentUse>> UsageOf(const OpenStep& step) const;
  /// Returns the error for an object that is absent, which `missing.file` names: kNotFound if no
  /// step uses it any more, because its steps were deleted, and otherwise kDataLoss.
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
  /// Returns whether a step that exists now uses the page, table or segment. If the newest root
  /// names an object that is missing, it cannot be found out, and this returns true.
  Result<bool> IsUsedNow(const ParsedObjectName& object) const;
  /// Returns whether `root` names the page, or a step of it uses the table or segment. kNotFound:
  /// the root names an object that is missing.
  Result<bool> IsUsedBy(const Root& root, const ParsedObjectName& object) const;
  Result<void> NoteSegments(const OpenStep& step) const;
  std::optional<ObjectId> KnownSegment(uint64_t segment_id) const;

  mutable Mutex mutex_;
  mutable std::map<uint64_t, std::shared_ptr<const OpenStep>> open_ CAIRN_GUARDED_BY(mutex_);
  mutable std::unordered_map<uint64_t, ObjectId> segments_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::kv::internal
