#pragma once
/// What an open store, its snapshots and its step writer share.

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kv/block_pool.h"
#include "kv/error.h"
#include "kv/internal/commit/commit_files.h"
#include "kv/internal/commit/live_generations.h"
#include "kv/internal/index/index.h"
#include "kv/internal/index/records.h"
#include "kv/internal/io/lock_file.h"
#include "kv/internal/segment/range_reader.h"
#include "kv/internal/segment/segment_format.h"
#include "kv/options.h"

namespace cairn::kv {
class Snapshot;
}

namespace cairn::kv::internal {

/// Shared by the Store, its Snapshots (which may outlive it) and its StepWriter.
struct StoreState {
  StorePaths paths;
  StoreOptions options;
  bool writable = false;
  bool joined = false;  // OpenMode::kJoinSession
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
  std::deque<std::string> finished_attempts;     // of several ranks, with an outcome; guarded by mutex
  std::string committed_attempt;             // the last one; guarded by mutex
};

}  // namespace cairn::kv::internal
