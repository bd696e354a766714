#pragma once
/// A store in a directory: committed steps, their records and payload, and the way to add and
/// delete steps atomically. Knows keys, records and byte ranges; tensors are the business of core/.
///
/// On disk (docs/format/ has each file byte by byte):
///   CAIRN                          format version and uuid
///   LOCK                           held by the one writer
///   index/                         RocksDB: the columns of kv/key.h
///   segments/<step>-<rank>-<id>.seg
///   pending/<attempt>/<rank>.manifest   a step that is being written, with what ranks tell each
///                                       other (kv/internal/commit/attempt_files.h)
///   commits/<generation>-<rank>.manifest  the records of a committed step, kept while it lives
///
/// Commit, in this order, each step durable before the next:
///   1. segments sealed: footer, fdatasync, directory fsync
///   2. manifest written to pending/, fsync, directory fsync
///   3. one atomic index write (steps, records, usage): the step exists from here on
///   4. manifest renamed to commits/, both directories fsynced; only now is the save acknowledged
/// Delete: manifest renamed to commits/*.deleting; index write; dead segments unlinked; the renamed
/// manifest unlinked. An overwrite is a commit whose index write also deletes the old generation.
///
/// Several ranks: each does 1 and makes a manifest in pending/ durable; rank 0, which alone has the
/// index, waits for all of them, joins them into its own manifest and goes on with 2. The others
/// learn the outcome from a file beside the manifests. Nothing is exchanged but files.
///
/// Whatever an open finds tells how far a crash got: a pending manifest whose step is not in the
/// index never happened (swept); one that is in the index lacks only step 4 (done now); a manifest
/// in commits/ that the index lacks means that the index lost committed data (docs/adr/0002): a
/// writer puts the step back from its manifest, a reader gets kDataLoss.

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

/// Threads: all const members may run from many threads at once, also beside one StepWriter.
/// Begin, Delete and Close are serialised by the store.
class Store {
 public:
  /// kNotFound: no store there (kRead). kConflict: another writer has it. kUnimplemented: newer
  /// format. kFailedPrecondition: nobody has invited to the session here (kJoinSession). kDataLoss: CAIRN
  /// or the index is damaged. kUnavailable: permission, I/O, deadline. kInvalidArgument: unusable
  /// I/O options, given or from the environment.
  static Result<std::unique_ptr<Store>> Open(const std::string& directory, OpenMode mode,
                                             StoreOptions options = {});
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  /// Makes the index anew from the manifests in commits/, for an index that does not open any more.
  /// The old one is kept beside it; no segment is removed. kConflict: a writer has the store.
  /// Otherwise errors as Open.
  struct RebuildReport {
    uint64_t steps = 0;       // that the new index has
    std::vector<Error> lost;  // manifests whose step could not be put back
    std::string old_index;    // where the old index now lies
  };
  static Result<RebuildReport> RebuildIndex(const std::string& directory,
                                            StoreOptions options = {});
  /// True if the index opens, every byte of its tables is right and no committed step is missing:
  /// then there is nothing to rebuild, and a manifest that is damaged would only be missed.
  static bool IndexIsWhole(const std::string& directory, const StoreOptions& options = {});

  const std::string& directory() const;
  /// As given, and `io` always set.
  const StoreOptions& options() const;
  bool writable() const;
  /// Names this opening of the store for writing, 16 hex digits drawn at random; or the one that
  /// was joined. Empty for readers.
  const std::string& session() const;
  /// Of the store, 32 hex digits, drawn when it was made.
  std::string uuid() const;
  /// Rank 0 of several: the session, which from here on others may join. It leaves a mark in the
  /// directory, so that a rank that sees another directory is found out.
  Result<std::string> OpenSession();
  /// What the open found and mended, or (tolerate_lost_steps) what it could not; for people.
  const std::vector<Error>& recovery_notes() const;

  /// Committed state as of now. A reader sees commits that came after its open.
  /// Cost: a stat when nothing changed; a read-only index open (milliseconds) when it did.
  Result<std::shared_ptr<const Snapshot>> Latest() const;

  /// Names the next attempt at a step: session, step and a counter of this step's attempts. All
  /// ranks of a job take one for every save, even for one that then fails before it begins; so that
  /// they agree on it without a word. Threads: any.
  std::string NextAttempt(uint64_t step);

  /// Starts writing `step`. kConflict: it exists and `overwrite` is false (rank 0 looks).
  /// kFailedPrecondition: read-only store, or another StepWriter of this store is alive.
  Result<std::unique_ptr<StepWriter>> Begin(uint64_t step, const BeginOptions& options);

  /// Several ranks: makes the attempt fail on all of them, with `error` as rank `rank`'s. Where the
  /// step is committed, or may be, the others get the error and keep their files.
  Result<void> FailAttempt(const std::string& attempt, uint32_t rank, const Error& error);

  /// Deletes whole steps in one index write; segments that nothing references any more are
  /// unlinked. kNotFound: one of them does not exist (nothing is deleted then).
  struct DeleteReport {
    uint64_t steps = 0;
    uint64_t segments = 0;
    uint64_t freed_bytes = 0;
  };
  Result<DeleteReport> Delete(std::span<const uint64_t> steps, bool dry_run = false);

  /// Releases the lock. Fails if a StepWriter is alive. The destructor does the same and drops
  /// errors.
  Result<void> Close();

  class Impl;

 private:
  explicit Store(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::kv
