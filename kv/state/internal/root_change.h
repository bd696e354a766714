#pragma once
/// A change of the step list: the next root, and the removal of objects that it makes unreachable.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "kv/root/internal/root_record.h"
#include "kv/state/internal/store_state.h"

namespace cairn::kv::internal {

/// Returns the newest root that the store knows.
std::shared_ptr<const CommittedRoot> CurrentRoot(const StoreState& state);

/// kFailedPrecondition: the store is open for reading only; the text ends with "open it for writing
/// to" and `purpose`.
Result<void> CheckWritable(const StoreState& state, std::string_view purpose);

/// kFailedPrecondition: it is unknown whether an earlier commit has happened. kConflict: another
/// writer has taken over the store. May be called without write_mutex.
Result<void> CheckCanCommit(const StoreState& state);

/// kConflict: another writer has taken over the store, so this process can commit nothing any more.
/// For the begin of a change, which otherwise finds out only in its commit, or earlier by a file
/// that the other writer removed. kDataLoss, kUnavailable: the roots cannot be read. Cost: as
/// FindNewer. May be called without write_mutex.
Result<void> CheckStillWriter(StoreState& state);

/// Makes other takers of the same flag of a store fail while it exists. Borrows the state.
class Turn {
 public:
  /// kFailedPrecondition: the store is open for reading only (see CheckWritable), or the flag is
  /// taken (`taken_message`). Has the errors of CheckCanCommit and CheckStillWriter, too.
  static Result<std::unique_ptr<Turn>> Take(StoreState& state, std::atomic<bool>& flag,
                                            std::string_view purpose, const char* taken_message);
  ~Turn() { flag_ = false; }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  explicit Turn(std::atomic<bool>& flag) : flag_(flag) {}
  std::atomic<bool>& flag_;
};

/// Returns what to report instead of `error`, with which a search for the newest root of an open
/// store has failed. kConflict, kFailedPrecondition: the store was replaced by another one, or was
/// removed. Otherwise, an error that is a loss has the hint kRebuild.
Error ExplainLoss(const StoreState& state, Error error);

/// Objects that a change makes unreachable.
struct Unreachable {
  std::vector<RemovedObject> objects;
  uint64_t segments = 0;
};
/// Determines which objects no step uses any more if the steps `removed` do not exist, `added`,
/// which may be null, does, and the steps `rewritten` have these entries. Returns nothing if the
/// entry of another step cannot be read. Requires write_mutex.
Result<Unreachable> FindUnreachable(StoreState& state, std::span<const uint64_t> removed,
                                    const StepEntry* added,
                                    std::span<const StepEntry> rewritten = {});

/// The actions of a commit in addition to the change of the list of steps.
struct CommitActions {
  std::span<const std::string> adopted = {};  // names of removed objects that the step reaches
  /// Objects that are durable under their names and are announced for kAnnouncedFor from the time
  /// of the commit on, also if they were announced before.
  std::span<const RemovedObject> announced = {};
  // New entries of steps that exist. They keep their generations.
  std::span<const StepEntry> rewritten = {};
  const TagChanges* tags = nullptr;
  const RetentionPolicy* retention = nullptr;  // the store's policy from now on
  std::optional<bool> compress = {};           // the default of saves from now on
  bool applies_retention = false;              // deletes steps as the policy of the store demands
  bool removes_waiting = false;                // also objects whose grace period has not passed
  bool takes_epoch = false;                    // the root has the next epoch, of the same writer
  std::function<void()> committed = nullptr;   // called once the root is committed, on any thread
};

/// Commits the next root, without the steps `removed`. Then removes objects whose grace period has
/// passed; errors of that are ignored, because the next open for writing finds the remaining
/// objects. If the disk is full, removes them before, and commits again; so nothing may be adopted.
/// kConflict: another writer has taken over the store. kUnavailable, kResourceExhausted: nothing
/// was committed, or outcome_unknown is set. Requires write_mutex.
Result<void> CommitChange(StoreState& state, std::span<const uint64_t> removed,
                          const Unreachable& unreachable, const CommitActions& actions = {});

/// Commits a step whose table was written, replacing a step of the same number. Sets the
/// generation of `entry`. After an error, removes the table unless outcome_unknown is set, so that
/// the caller may repeat the commit with another table. Returns the errors of FindUnreachable and
/// CommitChange. Requires write_mutex.
Result<void> CommitNewStep(StoreState& state, StepEntry& entry, const CommitActions& actions = {});

/// Objects that wait for a step. Before the commit of a step, a copier announces the step's
/// segments that it has finished: it adds them to the list of removed objects with a time in the
/// future, so that no commit or open for writing removes them before. The commit of a step that
/// reaches them takes them off the list.
inline constexpr std::chrono::hours kAnnouncedFor{24};
/// Returns whether an object in the list of `root` was announced, and its time had not come when
/// the root was put. Does not depend on the current time: a writer that was paused must not remove
/// an object because time has passed.
bool IsAnnounced(const RemovedObject& object, const Root& root);

/// Returns the segments that a step uses, from its entry or from its tables.
Result<std::vector<SegmentUse>> UsageOf(StoreState& state, const StepEntry& entry);

/// What a commit frees.
struct FreedSpace {
  uint64_t freed_bytes = 0;    // length of the objects that it removes
  uint64_t waiting_bytes = 0;  // length of those that still wait after it; announced ones do not
};
/// Returns what a commit frees now that makes `unreachable` unreachable, or, without a commit, what
/// waits. Objects that do not exist any more do not count. Cost: a request per object that waits.
/// Requires write_mutex if there is a commit.
FreedSpace SpaceAfter(StoreState& state, const Unreachable& unreachable);
uint64_t WaitingBytes(StoreState& state);

/// For how long a commit removes objects, and an open for writing. The next open continues.
inline constexpr std::chrono::minutes kLongestRemoval{10};
/// For how long a close, or the begin of a save, does. The next change or open continues.
inline constexpr std::chrono::seconds kShortRemoval{5};

/// Removes the objects whose grace period has passed, unless another writer has followed. Keeps
/// announced objects. Errors are ignored. Begins no further request after `limit`. Requires
/// write_mutex.
void RemoveDue(StoreState& state, std::chrono::seconds limit = kLongestRemoval);

/// For a write for which the file system has no space (FreeSpace): removes the objects whose grace
/// period has passed, and returns nothing if any were removed since the `seen` removals, also by
/// another thread or for another write. Otherwise returns what to add to the error: which bytes
/// wait, and how long. FreeSpaceForCommit requires write_mutex, and that the change of which the
/// write is a part is begun again; FreeSpaceForSave locks it.
std::optional<std::string> FreeSpaceForCommit(StoreState& state, uint64_t& seen);
std::optional<std::string> FreeSpaceForSave(StoreState& state, uint64_t& seen);

/// Removes what crashed attempts and writers have left, and the objects whose grace period has
/// passed. For the open for writing, after it has committed its epoch. Errors are ignored. Begins
/// no further request after `limit`, so the storage must bound the time of each.
void Sweep(StoreState& state, std::chrono::seconds limit = kLongestRemoval);

}  // namespace cairn::kv::internal
