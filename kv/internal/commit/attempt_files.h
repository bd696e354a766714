#pragma once
/// What the ranks of one attempt tell each other through pending/<attempt>/, besides manifests:
///
///   <rank>.manifest    there as a whole or not at all: it gets this name when it is durable
///   <digest>.shared    records that ranks have alike, in a manifest named by their digest
///   failed             a rank other than 0 cannot go on: rank 0 need not wait for it
///   outcome            rank 0's last word: committed, or the error that every rank returns
///
/// The last two are text (JSON) and replaced as a whole. They are not synced: after a power cut no
/// rank is left to read them, and the index alone says what was committed.

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "kv/internal/commit/commit_files.h"

namespace cairn::kv::internal {

std::string SharedPath(const StorePaths& paths, const std::string& attempt,
                       const std::string& digest);

/// Rank 0: the attempt's outcome is `error`, unless it has one; `kept` if the step may exist all
/// the same, so that nobody may remove anything. Another rank: its failure, unless one has failed
/// already.
Result<void> TellFailure(const StorePaths& paths, const std::string& attempt, uint32_t rank,
                         const Error& error, bool kept);
/// Rank 0: the step exists.
Result<void> PublishCommitted(const StorePaths& paths, const std::string& attempt,
                           uint64_t generation);

/// The failure that a rank told, if one did.
std::optional<Error> FindFailure(const StorePaths& paths, const std::string& attempt);

/// How the attempt ended; nothing before it has.
struct Outcome {
  Result<uint64_t> generation;  // that was committed
  bool discarded = false;       // the step does not exist: parts of it may be removed
};
std::optional<Outcome> FindOutcome(const StorePaths& paths, const std::string& attempt);

/// Adds an attempt that has an outcome, once.
void RecordAttempt(const std::string& attempt, std::deque<std::string>& attempts);
/// Removes the files of an attempt that has an outcome; but not a manifest of rank 0, which then is
/// the only one that its step has.
void ForgetAttempt(const StorePaths& paths, const std::string& attempt);

/// Looks again and again, soon first and then less often. Threads: one.
class Poll {
 public:
  /// `askers` ask the same file system; the more there are, the less often each may.
  explicit Poll(std::chrono::steady_clock::time_point deadline, uint32_t askers = 1);
  /// Sleeps a little; false, at once, if the deadline has passed.
  bool Again();

 private:
  std::chrono::steady_clock::time_point deadline_;
  std::chrono::microseconds pause_{100};
  std::chrono::microseconds longest_pause_;
};

}  // namespace cairn::kv::internal
