#pragma once
/// A store in a directory: committed steps with their records and payload, which are added and
/// deleted atomically. It knows keys, records and byte ranges; core/ knows tensors.
///
/// On disk (docs/format/ has each file byte by byte):
///   CAIRN                          format version and uuid
///   LOCK                           locked by the one writer
///   index/                         RocksDB: the columns of kv/key.h
///   segments/<step>-<rank>-<id>.seg
///   pending/<attempt>/<rank>.manifest   a step that is being written, and the messages between its
///                                       ranks (kv/internal/commit/attempt_outcome.h)
///   commits/<generation>-<rank>.manifest  the records of a committed step, kept while it exists
///
/// A commit performs these operations, each durable before the next begins:
///   1. Seal the segments: footer, fdatasync, fsync of the directory.
///   2. Write the manifest to pending/, fsync it and the directory.
///   3. Write to the index atomically (steps, records, usage): the step exists from here on.
///   4. Rename the manifest to commits/ and fsync the directory. Only now is the save acknowledged.
/// A delete renames the manifest to commits/*.deleting, writes to the index, unlinks the segments
/// to which nothing refers any more, and unlinks the renamed manifest. An overwrite is a commit
/// whose index write also deletes the old generation.
///
/// In a multi-rank store each rank performs 1 and makes a manifest in pending/ durable. Rank 0,
/// which alone has the index, waits for all of them, copies them into its own manifest and
/// continues with 2. The other ranks learn the outcome from a file next to the manifests. The ranks
/// communicate only through files.
///
/// From what an open finds it determines how far a commit got before a crash. A pending manifest
/// whose step is not in the index was never committed and is removed. If the index has the step,
/// only operation 4 is missing and is performed now. A manifest in commits/ that the index lacks
/// means that the index lost committed data (docs/adr/0002): a writer restores the step from its
/// manifest, a reader returns kDataLoss.

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kv/error.h"
#include "kv/options.h"
#include "kv/snapshot.h"
#include "kv/step_info.h"
#include "kv/step_writer.h"

namespace cairn::kv {

/// Threads: all const members and NextAttempt may run on many threads at once, also concurrently
/// with one StepWriter. The store serialises Begin, Delete and Close.
class Store {
 public:
  /// Opens the store in `directory`; kWrite creates it if it is absent. kNotFound: there is no
  /// store (kRead, kJoinSession). kConflict: another writer has it. kUnimplemented: its format is
  /// newer. kFailedPrecondition: rank 0 has no such session in this directory (kJoinSession).
  /// kDataLoss: CAIRN or the index is damaged. kUnavailable: permission, I/O or the deadline.
  /// kInvalidArgument: the directory is not a store, or the I/O options, given or from the
  /// environment, are unusable.
  static Result<std::unique_ptr<Store>> Open(const std::string& directory, OpenMode mode,
                                             StoreOptions options = {});
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  /// Creates the index again from the manifests in commits/, for an index that does not open any
  /// more. Keeps the old index under another name and removes no segment. kConflict: a writer has
  /// the store. kNotFound, kUnimplemented, kDataLoss, kUnavailable, kInvalidArgument: see Open.
  struct RebuildReport {
    uint64_t steps = 0;       // number of steps in the new index
    std::vector<Error> lost;  // manifests whose step could not be restored
    std::string old_index;    // path of the old index
  };
  static Result<RebuildReport> RebuildIndex(const std::string& directory,
                                            StoreOptions options = {});
  /// Returns whether the index opens, all its tables match their checksums and no committed step is
  /// missing. Then there is nothing to rebuild, and a rebuild could only lose the steps of damaged
  /// manifests.
  static bool IndexIsWhole(const std::string& directory, const StoreOptions& options = {});

  const std::string& directory() const;
  /// Returns the options that the caller gave; `io` is always set.
  const StoreOptions& options() const;
  bool writable() const;
  /// Identifies this open of the store for writing, or the one that was joined: 16 random hex
  /// digits. Empty for readers.
  const std::string& session() const;
  /// Identifies the store: 32 hex digits, generated when it was created.
  std::string uuid() const;
  /// Returns the session, which the other ranks may join from here on. Marks it in the directory,
  /// so that the join of a rank that sees another directory fails. kUnavailable,
  /// kResourceExhausted: the mark cannot be written. Requires kWrite.
  Result<std::string> OpenSession();
  /// What the open found and repaired or, with tolerate_lost_steps, could not repair; for people to
  /// read.
  const std::vector<Error>& recovery_notes() const;

  /// Returns the current committed state. A reader sees commits that were made after its open.
  /// kFailedPrecondition: the store is closed. kDataLoss, kUnavailable: a reader cannot open the
  /// changed index. Cost: a stat if nothing has changed; otherwise a read-only open of the index
  /// (milliseconds).
  Result<std::shared_ptr<const Snapshot>> Latest() const;

  /// Names the next attempt at a step: the session, the step and a counter of this step's attempts.
  /// All ranks of a job call it once per save, even if the save then fails before it begins, so
  /// that they agree on the name without communication.
  std::string NextAttempt(uint64_t step);

  /// Begins to write `step`. kConflict: it exists and `overwrite` is false (checked by rank 0).
  /// kFailedPrecondition: the store is read-only or closed, another StepWriter of this store
  /// exists, or an earlier change of the index failed and may be durable. kInvalidArgument: rank 0
  /// has not opened the store for writing, or another rank has not joined it. kUnavailable,
  /// kResourceExhausted: the manifest cannot be created.
  Result<std::unique_ptr<StepWriter>> Begin(uint64_t step, const BeginOptions& options);

  /// In a multi-rank store: makes an attempt fail on all ranks, with `error` as that of rank
  /// `rank`. If the step is committed, or may be, the other ranks return the error and keep their
  /// files. kUnavailable, kResourceExhausted: the error cannot be written.
  Result<void> FailAttempt(const std::string& attempt, uint32_t rank, const Error& error);

  /// Deletes complete steps in one index write, and unlinks the segments to which nothing refers
  /// any more. With `dry_run` only reports what it would delete. kNotFound: one of the steps does
  /// not exist; then none is deleted. kFailedPrecondition: the store is read-only or closed, or an
  /// earlier change of the index failed and may be durable.
  struct DeleteReport {
    uint64_t steps = 0;
    uint64_t segments = 0;
    uint64_t freed_bytes = 0;
  };
  Result<DeleteReport> Delete(std::span<const uint64_t> steps, bool dry_run = false);

  /// Releases the lock; has no effect if the store is closed already. kFailedPrecondition: a
  /// StepWriter exists. The destructor closes the store too, and ignores errors.
  Result<void> Close();

  class Impl;

 private:
  explicit Store(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::kv
