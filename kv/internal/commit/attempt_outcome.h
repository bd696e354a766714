#pragma once
/// The files in pending/<attempt>/ through which the ranks of one attempt communicate:
///
///   <rank>.manifest    the records of a rank; gets this name when it is complete and durable
///   <digest>.shared    records that several ranks have, in a manifest named by their digest
///   failed             the error of a rank other than 0 that cannot continue; rank 0 stops waiting
///   outcome            the decision of rank 0: committed, or the error that every rank returns
///
/// The last two are JSON and are created atomically. They are not synced: after a power failure no
/// rank remains to read them, and the index alone determines what was committed.

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "kv/internal/commit/commit_files.h"

namespace cairn::kv::internal {

/// Path of the shared records with this digest.
std::string SharedPath(const StorePaths& paths, const std::string& attempt,
                       const std::string& digest);

/// On rank 0: makes `error` the outcome of the attempt, unless it has an outcome. `kept` states
/// that the step may exist nevertheless, so that no rank may remove its files. On another rank:
/// publishes its failure, unless a rank has failed before. kUnavailable, kResourceExhausted: the
/// file cannot be written.
Result<void> PublishFailure(const StorePaths& paths, const std::string& attempt, uint32_t rank,
                            const Error& error, bool kept);
/// On rank 0: publishes that the step is committed. kUnavailable, kResourceExhausted: the file
/// cannot be written.
Result<void> PublishCommitted(const StorePaths& paths, const std::string& attempt,
                              uint64_t generation);

/// Returns the failure that a rank other than 0 has published, if there is one.
std::optional<Error> FindFailure(const StorePaths& paths, const std::string& attempt);

/// How an attempt ended.
struct Outcome {
  Result<uint64_t> generation;  // of the step that was committed
  bool discarded = false;       // the step does not exist, so its parts may be removed
};
/// Returns nothing if rank 0 has not published an outcome yet.
std::optional<Outcome> FindOutcome(const StorePaths& paths, const std::string& attempt);

/// Adds `attempt`, which has an outcome, to `attempts`, unless it contains it.
void RecordAttempt(const std::string& attempt, std::deque<std::string>& attempts);
/// Removes the files of an attempt that has an outcome. Keeps them if there is a manifest of rank
/// 0, because it may be the only manifest of a committed step.
void ForgetAttempt(const StorePaths& paths, const std::string& attempt);

/// Paces a loop that polls for a file, with pauses that grow. Threads: one.
class Poll {
 public:
  /// `poller_count` processes poll the same file system; the more there are, the longer the pauses.
  explicit Poll(std::chrono::steady_clock::time_point deadline, uint32_t poller_count = 1);
  /// Sleeps for one pause. If the deadline has passed, returns false immediately.
  bool Again();

 private:
  std::chrono::steady_clock::time_point deadline_;
  std::chrono::microseconds pause_{100};
  std::chrono::microseconds longest_pause_;
};

}  // namespace cairn::kv::internal
