#pragma once
/// The objects in pending/<attempt>/ through which the ranks of one attempt communicate:
///
///   <rank>.part        the records of a rank (part_file.h)
///   <digest>.shared    records that several ranks have, as a part that is named by their digest
///   failed             the error of a rank other than 0 that cannot continue; rank 0 stops waiting
///   outcome            the decision of rank 0: committed, or the error that every rank returns
///   <rank>.full, full  empty: there was no space for the error of a rank; `full` if it is not 0
///
/// `failed` and `outcome` are JSON. Nothing here decides whether a step exists: only roots do.

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "kv/base/error.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// Length of the digests of shared records, in hexadecimal digits.
inline constexpr size_t kSharedDigits = 32;

std::string PartName(const std::string& attempt, uint32_t rank);
/// Name of the shared records with this digest.
std::string SharedName(const std::string& attempt, const std::string& digest);

/// On rank 0: makes `error` the outcome of the attempt, unless it has an outcome. If `kept`, the
/// step may exist nevertheless, so that no rank may remove its objects. On another rank: publishes
/// its failure, unless a rank has failed before. kUnavailable, kResourceExhausted: the object
/// cannot be put.
Result<void> PublishFailure(Storage& storage, const std::string& attempt, uint32_t rank,
                            const Error& error, bool kept);
/// On rank 0: publishes that the step is committed. kUnavailable, kResourceExhausted: the object
/// cannot be put.
Result<void> PublishCommitted(Storage& storage, const std::string& attempt, uint64_t generation);

/// Returns the failure that a rank other than 0 has published, if there is one.
std::optional<Error> FindFailure(Storage& storage, const std::string& attempt);

/// How an attempt ended.
struct Outcome {
  Result<uint64_t> generation;  // generation of the step that was committed
  bool discarded = false;       // the step does not exist, so its parts may be removed
};
/// Returns nothing if rank 0 has not published an outcome yet.
std::optional<Outcome> FindOutcome(Storage& storage, const std::string& attempt);

/// Adds `attempt`, which has an outcome, to `attempts`, unless it contains it.
void RecordAttempt(const std::string& attempt, std::deque<std::string>& attempts);
/// Removes all objects of an attempt; with `keeps_failure`, not an outcome that is an error, for
/// ranks that have not read it. Ignores errors: the next open for writing removes what remains.
void ForgetAttempt(Storage& storage, const std::string& attempt, bool keeps_failure = false);

/// Returns whether the name is one that the ranks of an attempt give, or cairn.dcp. Others in
/// pending/ are foreign, and nobody removes them.
bool IsPendingName(std::string_view name);

/// Returns the name of a session: its epoch and 24 random hexadecimal digits.
Result<std::string> NewSession(uint32_t epoch);
/// Returns the epoch of a session, or of an attempt, which begins with the name of its session;
/// nothing if it is not one.
std::optional<uint32_t> EpochOfSession(std::string_view name);

/// Paces a loop that polls for an object, with pauses that grow. Threads: one.
class Poll {
 public:
  /// `poller_count` processes poll the same storage; the more there are, the longer the pauses.
  explicit Poll(std::chrono::steady_clock::time_point deadline, uint32_t poller_count = 1);
  /// Sleeps for one pause. If the deadline has passed, returns false immediately.
  bool Again();

 private:
  std::chrono::steady_clock::time_point deadline_;
  std::chrono::microseconds pause_{100};
  std::chrono::microseconds longest_pause_;
};

}  // namespace cairn::kv::internal
