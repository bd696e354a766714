#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Options of an open, of payload I/O, and of an attempt at a step.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kv/base/annotations.h"
#include "kv/base/error.h"
#include "kv/base/s3_options.h"
#include "kv/base/step_info.h"

namespace cairn::kv {

struct RebuildReport {
  uint64_t steps = 0;        // number of steps that the new root names
  std::vector<Error> lost;   // losses: objects or records that could not be recovered
  std::vector<Error> notes;  // damaged roots, and partial recoveries, or recoveries by assumption
};

enum class OpenMode {
  kRead,   // never changes anything
  kWrite,  // one writer at a time; creates the store if it is absent
  // A rank of a job whose rank 0 has the store open for writing. It adds segments and parts to
  // steps that rank 0 commits.
  kJoinSession,
};

/// How payload is read and written. The defaults suit a local disk.
struct IoOptions {
  bool direct = true;              // use O_DIRECT if the file system allows it
  bool uring = true;               // use io_uring if the kernel allows it, otherwise threads
  uint64_t block_bytes = 2 << 20;  // one request; 4 KiB to 1 GiB
  uint32_t queue_depth = 5;        // blocks in flight, 1 to 1024, of writes and of reads separately
};

struct StoreOptions {
  /// If absent: the defaults above, changed by the environment variables CAIRN_IO_BLOCK_BYTES,
  /// CAIRN_IO_DEPTH, CAIRN_IO_ENGINE (uring or threads) and CAIRN_IO_DIRECT (0 or 1).
  std::optional<IoOptions> io;
  /// Reads through the cache that the environment variables CAIRN_CACHE and CAIRN_CACHE_BYTES
  /// define, if objects are not files. False: reads from the storage itself, to verify it.
  bool reader_cache = true;
  /// How long objects that no step uses any more remain, for readers that still use them. Commits
  /// and opens for writing remove them after this time, which counts as 100 years if it is longer.
  std::chrono::milliseconds grace{60'000};
  /// For kWrite: becomes the writer even if another process has the store open for writing. That
  /// process can commit nothing from then on.
  bool take_over = false;
  /// For stores in buckets.
  S3Options s3;
  /// For kJoinSession: what Store::OpenSession returned to the job's rank 0.
  std::string session;
};

/// From what the next step of a store continues (Store::continuation).
struct Continuation {
  std::optional<StepInfo> step;  // the one that was loaded or saved last; without its annotations
  uint64_t load_count = 0;       // of the store
};

/// How an attempt at a step begins (Store::Begin).
struct BeginOptions {
  bool overwrite = false;
  uint32_t rank = 0;
  uint32_t world_size = 1;
  std::string attempt;  // from Store::NextAttempt; if empty, Begin takes the next one
  /// Until when rank 0 waits for the parts of the other ranks, and must have begun to commit.
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  /// Until when the other ranks wait for the decision of rank 0.
  std::chrono::steady_clock::time_point decision_deadline =
      std::chrono::steady_clock::time_point::max();
  // Only rank 0 passes these. Requires that CheckAnnotations accepts them.
  std::vector<Metric> metrics = {};
  std::string note = {};
  std::vector<std::string> tags = {};  // tags that name the step from its commit on
  /// The step from which this one continues. If absent: the one that this store has saved or
  /// continued from last (Store::ContinueFrom), otherwise the latest one. A step that replaces
  /// another one has its parent and its run instead, unless it continues from a lower step.
  std::optional<uint64_t> parent = {};
  std::optional<RunId> run = {};  // if absent: that of the parent; a random one if there is none
  /// The store's when the save was requested, if that was before Begin.
  std::optional<Continuation> continuation = {};
  /// The step is made of stored ones. The next save continues from it only if it replaces the step
  /// from which that would have continued.
  bool is_derived = false;
};

}  // namespace cairn::kv
