#pragma once
// SPDX-License-Identifier: Apache-2.0
/// A store: committed steps with their records and payload, which are added and deleted atomically.
/// It knows keys, records and byte ranges; core/ knows tensors.
///
/// A store consists of objects in a Storage (kv/storage/storage.h), which is a directory or memory.
/// Each is written once; docs/format/ has each of them byte by byte:
///   CAIRN                          format version and uuid
///   segments/<epoch>-<id>.seg      payload
///   tables/<epoch>-<id>.sst        records of a step, in RocksDB's table format
///   pages/<epoch>-<id>.steps       entries of older steps
///   roots/<2^64-1-n>.root          what the store contains from commit n on
///   pending/<attempt>/             parts of ranks, and the messages between them
///   leases/<session>               the process that writes
///
/// A commit performs these operations, each durable before the next begins:
///   1. Seal the segments: footer, fdatasync, fsync of the directory.
///   2. Put the table with the records that differ from the base.
///   3. Put the next root if it is absent: the step exists from here on.
/// A delete puts a root without the step. Objects that no step uses any more are removed when the
/// grace period has passed. An overwrite is a commit whose root replaces the step.
///
/// In a multi-rank store each rank performs 1, and the ranks other than 0 put a part in pending/.
/// Rank 0, which alone commits, waits for all of them, adds their records to its own and continues
/// with 2. The other ranks learn the outcome from an object next to the parts. The ranks
/// communicate only through objects.
///
/// Each open for writing commits a root with the next epoch. From then on no writer of an older
/// epoch can commit, because it would have to put a root that exists. The objects that a crash
/// leaves are unreachable from the newest root, and the next open for writing removes them.

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/options.h"
#include "kv/base/retention.h"
#include "kv/base/step_info.h"
#include "kv/read/snapshot.h"
#include "kv/step_writer.h"
#include "kv/storage/storage.h"

namespace cairn::kv {

namespace internal {
class StoreAccess;
struct StoreState;
}  // namespace internal

/// A child that this process forks may read from the store. In the child, Begin, Delete,
/// FailAttempt, Close, and appends and commits of a StepWriter return kFailedPrecondition, and
/// destructors change nothing.
///
/// Threads: all const members and NextAttempt may run on many threads at once, also concurrently
/// with one StepWriter. The store serialises Begin, Delete and Close.
class Store {
 public:
  /// Opens the store at `address` (see OpenStorage); kWrite creates it if it is absent. kNotFound:
  /// there is no store (kRead, kJoinSession). kConflict: another writer has it; the message names
  /// that writer. kUnimplemented: it has another format. kFailedPrecondition: rank 0 has no such
  /// session (kJoinSession). kDataLoss: CAIRN or the newest root is damaged. kUnavailable:
  /// permission or I/O. kInvalidArgument: there is something else at the address, or the I/O or
  /// cache options, given or from the environment, are unusable.
  ///
  /// With a reader cache, kRead checks nothing if this machine has read the store before. Then the
  /// first call of Latest returns these errors.
  static Result<std::unique_ptr<Store>> Open(const std::string& address, OpenMode mode,
                                             StoreOptions options = {});
  /// Opens the store in `storage`, which the store, its snapshots and its writer share with the
  /// caller: for storages without an address, such as storages that inject faults. Returns the
  /// errors of the other Open.
  static Result<std::unique_ptr<Store>> Open(std::shared_ptr<Storage> storage, OpenMode mode,
                                             StoreOptions options = {});
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  /// Creates the roots again from the tables, and tables from the footers of segments, for a store
  /// whose newest root cannot be read (docs/format/recovery.md). Removes nothing. kConflict: a
  /// writer has the store. kFailedPrecondition: the store opens, and there is nothing to rebuild.
  /// kUnavailable, kResourceExhausted: an object cannot be read or written; no step is given up for
  /// that. kNotFound, kUnimplemented, kDataLoss, kInvalidArgument: see Open.
  static Result<RebuildReport> Rebuild(const std::string& address, StoreOptions options = {});
  static Result<RebuildReport> Rebuild(std::shared_ptr<Storage> storage, StoreOptions options = {});

  /// Returns the address of the storage; for a directory, its path.
  const std::string& directory() const;
  /// Returns the storage that the store holds open, whatever its address means by now. For readers
  /// of objects that a Snapshot does not show. The store must outlive it.
  Storage& storage() const;
  /// Returns the options that the caller gave; `io` is always set.
  const StoreOptions& options() const;
  bool writable() const;
  /// Identifies this open of the store for writing, or the one that was joined: 16 random hex
  /// digits. Empty for readers.
  const std::string& session() const;
  /// Identifies the store: 32 hex digits, generated when it was created. All are 0 if the open
  /// checked nothing, and the store cannot be read.
  std::string uuid() const;
  /// Returns the session, which the other ranks may join. A join by a rank that sees another
  /// directory fails, because that has no lease of the session. kConflict: another writer has taken
  /// over the store. kFailedPrecondition: the store is closed. kUnavailable: I/O. Requires kWrite.
  Result<std::string> OpenSession();
  /// Returns the current committed state. A reader sees commits that were made after its open.
  /// kFailedPrecondition: the store is closed. kDataLoss, kUnavailable: a reader cannot read the
  /// newest root. Cost for readers: two stats if nothing has changed, otherwise a read of the root.
  Result<std::shared_ptr<const Snapshot>> Latest() const;

  /// Returns a snapshot that contains `step`: the latest, or, if the step has been deleted or
  /// replaced since the caller found it, an older one. kNotFound: the step was deleted, and the
  /// root that committed it has been removed. Returns the errors of Latest, too.
  Result<std::shared_ptr<const Snapshot>> SnapshotWith(const StepInfo& step) const;

  /// Waits until another process may have committed a change, at most for `timeout`. May return
  /// early.
  void AwaitChange(std::chrono::milliseconds timeout) const;

  /// States that `step` was loaded: the next step that this store saves without a parent
  /// (BeginOptions) continues from it.
  void ContinueFrom(const StepInfo& step) const;
  /// For a save that begins later (BeginOptions::continuation).
  Continuation continuation() const;

  /// Names the next attempt at a step: the session, the step and a counter of this step's attempts.
  /// All ranks of a job call it once per save, even if the save then fails before it begins, so
  /// that they agree on the name without communication.
  std::string NextAttempt(uint64_t step);

  /// Begins to write `step`. kConflict: it exists and `overwrite` is false (checked by rank 0).
  /// kNotFound: there is no step `options.parent`.
  /// kFailedPrecondition: the store is read-only or closed, another StepWriter of this store
  /// exists, or it is unknown whether an earlier change was committed. kInvalidArgument: rank 0
  /// has not opened the store for writing, or another rank has not joined it.
  Result<std::unique_ptr<StepWriter>> Begin(uint64_t step, const BeginOptions& options);

  /// In a multi-rank store: makes an attempt fail on all ranks, with `error` as the error of rank
  /// `rank`. If the step is committed, or may be, the other ranks return the error and keep their
  /// objects. kUnavailable, kResourceExhausted: the error cannot be put.
  Result<void> FailAttempt(const std::string& attempt, uint32_t rank, const Error& error);

  /// Deletes complete steps in one commit. The objects that no step uses any more are removed when
  /// the grace period has passed. With `dry_run` only reports what it would delete, also if the
  /// store is read-only. kNotFound: one of the steps does not exist; then none is deleted.
  /// kFailedPrecondition: the store is read-only or closed, or it is unknown whether an earlier
  /// change was committed.
  struct DeleteReport {
    uint64_t steps = 0;
    uint64_t segments = 0;  // segments that no step uses any more
    /// Length of the objects that the call removes, of earlier steps too. A call without steps
    /// removes nothing.
    uint64_t freed_bytes = 0;
    /// Length of the objects, of these steps and of earlier ones, that a later change, or the close
    /// of a store, removes after the grace period.
    uint64_t waiting_bytes = 0;
  };
  Result<DeleteReport> Delete(std::span<const uint64_t> steps, bool dry_run = false);
  /// Removes what waits for the end of its grace period, after a commit that no longer lists it.
  /// Returns its length. Requires that no reader is open that was open before the deletes: such a
  /// reader fails with kNotFound. Returns the errors of Delete.
  Result<uint64_t> RemoveWaiting();

  /// Changes tags in one commit. A tag that names another step is moved. kNotFound: a step does not
  /// exist, or a tag that is to be removed; then nothing is changed. kInvalidArgument: see
  /// CheckTags. Returns the errors of Delete, too.
  Result<void> ChangeTags(const TagChanges& changes);

  /// Sets which steps remain: from now on, each commit of a step that is saved, edited or merged
  /// deletes the steps that neither the policy nor a tag keeps, except newer steps and the steps of
  /// KeepSteps. The commit of a copied step deletes nothing. A policy that keeps nothing ends this.
  /// One commit, which deletes nothing itself. kInvalidArgument: see CheckRetention. Returns the
  /// errors of Delete, too.
  Result<void> SetRetention(const RetentionPolicy& policy);
  /// Sets whether saves compress what they write (core::SaveOptions::compress) if they do not state
  /// otherwise, in later processes too. Off in a new store. One commit, which changes nothing that
  /// is stored. Returns the errors of Delete.
  Result<void> SetCompression(bool compress);
  /// Replaces the list of steps that the policy does not delete while this store is open.
  void KeepSteps(std::span<const uint64_t> steps);

  /// Removes the objects whose grace period has passed, and releases the lease. A repeated call
  /// has no effect, or tries again to remove the lease if that has failed. kFailedPrecondition: a
  /// StepWriter exists, or a compaction runs. kUnavailable: the store is closed, but its lease
  /// cannot be removed: other processes of this host are refused until a repeated call removes it,
  /// or this process ends, and processes of other hosts until it expires. The destructor closes the
  /// store too, and ignores errors.
  Result<void> Close();

 private:
  friend class internal::StoreAccess;
  explicit Store(std::shared_ptr<internal::StoreState> state);

  const std::shared_ptr<internal::StoreState> state_;
};

}  // namespace cairn::kv
