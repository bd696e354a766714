#pragma once
/// What an open store, its snapshots and its step writer share.

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "kv/internal/io/block_io.h"
#include "kv/internal/commit/commit_files.h"
#include "kv/internal/index/index.h"
#include "kv/internal/io/lock_file.h"
#include "kv/internal/segment/range_reader.h"
#include "kv/internal/index/records.h"
#include "kv/internal/segment/segment_format.h"
#include "kv/store.h"

namespace cairn::kv::internal {

class CollectedRecords;

/// Generations that exist, as the writer of this process knows them. A scan in a writer's index is
/// not a view of one moment; a generation that is gone after the scan means that it may have been
/// cut.
class LiveGenerations {
 public:
  void Set(const std::vector<StepEntry>& steps);
  bool Contains(uint64_t generation) const;

 private:
  mutable std::mutex mutex_;
  std::set<uint64_t> generations_;  // guarded by mutex_
};

/// Shared by the Store, its Snapshots (which may outlive it) and its StepWriter.
struct StoreState {
  StorePaths paths;
  StoreOptions options;
  bool writable = false;
  bool joined = false;  // OpenMode::kJoin
  Uuid uuid{};
  std::string session;                // 16 hex digits, new at each open
  std::vector<Error> recovery_notes;  // what the open found, for people
  std::vector<Error> lost_steps;      // those of them that could not be put right

  std::shared_ptr<Index> index;  // the writer's; readers' are in their snapshots
  std::shared_ptr<BlockPool> pool;
  std::shared_ptr<SegmentFiles> files;
  std::shared_ptr<LiveGenerations> live;  // null for readers
  std::unique_ptr<LockFile> lock;

  std::mutex write_mutex;  // held while the index is changed
  std::atomic<bool> step_writer_alive = false;
  /// A change failed and the index could not be reopened to see what became of it. Nothing that the
  /// change made or replaced may be removed: the next open for writing decides.
  std::atomic<bool> outcome_unknown = false;

  mutable std::mutex mutex;
  std::vector<StepEntry> steps;              // guarded by mutex; the writer's
  uint64_t next_generation = 1;              // guarded by mutex
  std::shared_ptr<const Snapshot> latest;    // guarded by mutex; null: to be made
  bool closed = false;                       // guarded by mutex
  std::map<uint64_t, uint64_t> attempts_at;  // by step; guarded by mutex
  std::deque<std::string> told_attempts;     // of several ranks, with an outcome; guarded by mutex
  std::string committed_attempt;             // the last one; guarded by mutex
};

/// All step records of an index, ascending.
Result<std::vector<StepEntry>> LoadSteps(const Index& index);

/// Steps about to go out of existence, and what goes with them.
struct Removal {
  std::vector<StepEntry> steps;
  std::vector<Usage> usage;                // of those steps
  std::vector<SegmentInfo> dead_segments;  // used by no other step
};
/// `kept_segments` are in use by a step that is being committed. Requires write_mutex.
Result<Removal> PlanRemoval(const StoreState& state, std::vector<StepEntry> steps,
                            const std::set<uint64_t>& kept_segments);
/// The index changes of a removal. `replacement` is the step that takes the place, if any.
void AddToBatch(const StoreState& state, const Removal& removal, const StepEntry* replacement,
                IndexBatch& batch);
/// Before the index write: manifests become *.deleting, or none of them. Undo puts them back.
Result<void> MarkRemoval(const StoreState& state, const Removal& removal);
void UndoRemoval(const StoreState& state, const Removal& removal);
/// After the index write: dead segments and the marked manifests go. Returns freed bytes. What
/// cannot be unlinked is swept at the next open.
uint64_t FinishRemoval(const StoreState& state, const Removal& removal);

/// Writes `batch` and makes it durable. On failure reopens the index, which drops the batch for
/// good or shows that it is durable all the same: then `is_committed`, called with state.steps
/// fresh, is true and this is a success. If that fails too, state.outcome_unknown is set.
Result<void> CommitBatch(StoreState& state, const IndexBatch& batch,
                         const std::function<bool()>& is_committed);
/// kFailedPrecondition once outcome_unknown is set.
Result<void> CheckOutcomeKnown(const StoreState& state);

/// Refreshes steps, next_generation, live and the latest snapshot from the index.
Result<void> RefreshSteps(StoreState& state);
/// Deletes records of generations that no step refers to: those of an attempt that died half way.
Result<void> DropOrphanRecords(StoreState& state);

/// Indexes the manifests of one step, all ranks', as `generation`: its records in bounded pieces,
/// then in one last atomic write the step record, what `removal` takes away, and all else.
struct ManifestFile {
  std::string path;
  uint32_t rank = 0;
};
Result<StepEntry> IndexStep(StoreState& state, const std::vector<ManifestFile>& manifests,
                            uint64_t generation, const std::vector<StepEntry>& replaced,
                            Removal* removal);
/// The same for a manifest whose records are at hand.
Result<StepEntry> IndexStep(StoreState& state, CollectedRecords& records,
                            const ManifestRef& manifest, uint64_t generation,
                            const std::vector<StepEntry>& replaced, Removal* removal);

/// True if the index opens, every byte of its tables is right and no committed step is missing.
bool IndexIsWhole(const StorePaths& paths, std::chrono::milliseconds deadline);

/// Puts right what a crash left behind; see kv/store.h. Requires the lock and an open index. With
/// `sweep` false no segment is removed, whatever the index says.
Result<void> Recover(StoreState& state, bool sweep = true);
/// *.deleting files get their old names back: whether those deletes went through, only the lost
/// index knew, and a step too many is better than one too few.
Result<void> UndoAllDeletes(StoreState& state);

/// A snapshot over `index`.
std::shared_ptr<const Snapshot> MakeSnapshot(const StoreState& state, std::shared_ptr<Index> index,
                                             const std::vector<StepEntry>& steps);

}  // namespace cairn::kv::internal

namespace cairn::kv {

class Snapshot::Impl {
 public:
  internal::StorePaths paths;
  StoreOptions options;
  bool writable = false;
  internal::Uuid uuid{};
  std::shared_ptr<internal::Index> index;
  std::shared_ptr<BlockPool> pool;
  std::shared_ptr<internal::SegmentFiles> files;
  std::shared_ptr<internal::LiveGenerations> live;  // null for readers
  std::vector<StepInfo> steps;
  std::vector<internal::StepEntry> entries;  // as steps, with manifests

  Result<void> CheckStillThere(uint64_t generation) const;
  Result<std::shared_ptr<const internal::SegmentFile>> OpenSegment(uint64_t segment_id) const;
  /// kNotFound if the index of now no longer has the segment, else kDataLoss.
  Error MissingSegment(uint64_t segment_id, const Error& cause) const;
};

}  // namespace cairn::kv
