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
#include <optional>
#include <string>

#include "kv/internal/commit_files.h"

namespace cairn::kv::internal {

std::string SharedPath(const StorePaths& paths, const std::string& attempt,
                       const std::string& digest);

/// Rank 0: the attempt's outcome is `error`, unless it has one. Another rank: its failure, unless
/// one has failed already.
Result<void> TellFailure(const StorePaths& paths, const std::string& attempt, uint32_t rank,
                         const Error& error);
/// Rank 0: the step exists.
Result<void> TellCommitted(const StorePaths& paths, const std::string& attempt,
                           uint64_t generation);

/// The failure that a rank told, if one did.
std::optional<Error> FindFailure(const StorePaths& paths, const std::string& attempt);

/// The generation that was committed, or the error that the attempt ended with; nothing before.
std::optional<Result<uint64_t>> FindOutcome(const StorePaths& paths, const std::string& attempt);

/// Looks again and again, soon first and then less often. Threads: one.
class Poll {
 public:
  explicit Poll(std::chrono::steady_clock::time_point deadline) : deadline_(deadline) {}
  /// Sleeps a little; false, at once, if the deadline has passed.
  bool Again();

 private:
  std::chrono::steady_clock::time_point deadline_;
  std::chrono::microseconds pause_{100};
};

}  // namespace cairn::kv::internal
