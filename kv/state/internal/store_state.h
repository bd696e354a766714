#pragma once
/// The state that an open store, its snapshots and its step writer share.

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "kv/base/error.h"
#include "kv/base/mutex.h"
#include "kv/base/options.h"
#include "kv/base/step_info.h"
#include "kv/io/block_pool.h"
#include "kv/io/internal/block_io.h"
#include "kv/root/internal/lease.h"
#include "kv/root/internal/root_record.h"
#include "kv/root/internal/step_list.h"
#include "kv/segment/internal/segment_files.h"
#include "kv/segment/internal/segment_format.h"
#include "kv/storage/storage.h"
#include "kv/table/internal/table_reader.h"

namespace cairn::kv {
class Snapshot;
class Store;
}  // namespace cairn::kv

namespace cairn::kv::internal {

/// A root and the steps that it names.
struct CommittedRoot {
  Root root;
  StepList steps;
};

/// Shared by the Store, its Snapshots (which may outlive it) and its StepWriter.
struct StoreState {
  std::shared_ptr<Storage> storage;
  StoreOptions options;
  bool writable = false;
  bool joined = false;  // OpenMode::kJoinSession
  Uuid uuid{};
  Features features;    // those of CAIRN; the root may list more
  std::string session;  // 32 hex digits: the epoch, and 24 random ones
  uint32_t epoch = 0;   // epoch of the session
  const pid_t owner = ::getpid();

  std::shared_ptr<BlockPool> pool;  // blocks of writes
  /// Blocks of reads: a save reads its base while the blocks of its own writes are in flight, and
  /// only the thread that waits for the read returns these.
  std::shared_ptr<BlockPool> read_pool;
  std::shared_ptr<FileQueues> queues;
  std::shared_ptr<SegmentFiles> files;
  std::shared_ptr<OpenTables> tables;
  std::unique_ptr<LeaseKeeper> lease;  // the writer's lease

  /// A reader has read neither the identity nor a root yet; `uuid` and `root` are empty.
  std::atomic<bool> unread = false;
  Mutex first_read_mutex;  // held while a reader reads them for the first time

  Mutex write_mutex;  // held during a commit; locked before `mutex`
  /// The oldest root that this writer has not removed; 0 if that is unknown.
  std::atomic<uint64_t> oldest_root = 0;
  /// How many times RemoveDue has removed objects.
  std::atomic<uint64_t> removal_count = 0;
  std::atomic<bool> step_writer_alive = false;
  std::atomic<bool> compacting = false;
  /// A save or a compaction of this session has begun, so segments of `epoch` have other writers
  /// than copies.
  std::atomic<bool> has_saved = false;
  /// Epoch of the segments that copies write, and the ids that they have taken in it; nothing: no
  /// copy has begun (kv/copy_steps.cc). Used by the one copy that runs.
  std::optional<uint32_t> copy_epoch;
  std::set<uint64_t> copied_ids;
  /// It is unknown whether a commit of this process has happened. No object that it refers to may
  /// be removed: the next open for writing decides.
  std::atomic<bool> outcome_unknown = false;

  mutable Mutex mutex;
  std::shared_ptr<const CommittedRoot> root CAIRN_GUARDED_BY(mutex);  // the newest known one
  std::shared_ptr<const Snapshot> latest CAIRN_GUARDED_BY(mutex);  // for `root`; null: not created
  std::optional<Error> fenced CAIRN_GUARDED_BY(mutex);  // another writer has taken over the store
  bool closed CAIRN_GUARDED_BY(mutex) = false;
  Continuation continuation CAIRN_GUARDED_BY(mutex);
  std::map<uint64_t, uint64_t> attempts_at CAIRN_GUARDED_BY(mutex);  // number of attempts by step
  // In a multi-rank store: attempts that have an outcome, and the last one that was committed.
  std::deque<std::string> finished_attempts CAIRN_GUARDED_BY(mutex);
  std::string committed_attempt CAIRN_GUARDED_BY(mutex);
  /// Segments that compactions of this process have replaced and that nobody has begun to remove.
  /// Saves that began before may refer to them.
  std::map<uint64_t, SegmentInfo> replaced_segments CAIRN_GUARDED_BY(mutex);
  /// Steps that saves do not delete, whatever the policy of the store is.
  std::set<uint64_t> kept_steps CAIRN_GUARDED_BY(mutex);
};

/// Returns what a Continuation contains of a step: it is copied for each load and save.
inline StepInfo WithoutAnnotations(const StepInfo& step) {
  return {.step = step.step, .attempt = step.attempt, .parent = step.parent, .run = step.run};
}

/// kFailedPrecondition: this process was forked from the one that opened the store. It must not
/// change anything in that one's name, nor wait for its threads. Locks nothing.
Result<void> CheckNotForked(const StoreState& state);

/// Access to the state of an open store, for the sources of kv/ and tests.
class StoreAccess {
 public:
  static StoreState& StateOf(const Store& store);
};

}  // namespace cairn::kv::internal
