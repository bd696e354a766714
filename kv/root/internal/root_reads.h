#pragma once
/// Single roots and the hint: what the search for the newest root and the commit of the next read.
/// Threads: all functions here may run on many threads at once.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "kv/root/internal/root_record.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

inline constexpr std::string_view kHintName = "hint";
/// No root has a number above this: arithmetic with numbers of roots cannot overflow.
inline constexpr uint64_t kMaxRootNumber = ~uint64_t{0} >> 1;
/// Number of newest roots that RemoveOldRoots keeps.
inline constexpr uint64_t kKeptRoots = 64;
/// Every root whose number is a multiple of this is written to the hint. A put for each root would
/// make a commit in a directory half again as expensive.
inline constexpr uint64_t kHintInterval = 16;
static_assert(kKeptRoots >= 2 * kHintInterval);

/// The pause before a request is repeated for the `attempt`-th time, from 0 on.
inline std::chrono::milliseconds PauseAfter(int attempt) {
  return std::chrono::milliseconds(2) * (1 << std::min(attempt, 8));
}

/// Returns root `number`; nothing if it does not exist. kDataLoss: it is damaged.
Result<std::optional<Root>> ReadRoot(Storage& storage, uint64_t number);
Result<bool> RootExists(Storage& storage, uint64_t number);
/// Returns 0 if there is no hint that can be used.
Result<uint64_t> ReadHint(Storage& storage);
/// Writes the hint if `number` is a multiple of kHintInterval. Ignores errors.
void WriteHint(Storage& storage, uint64_t number);

/// The presence of a root with a number.
enum class Presence : uint8_t {
  kAbsent,
  kSame,
  kUnclear,  // a root that may be the same: it is damaged, or the commit id is not known
  kOther,
};

/// Damage of a root that nobody needs any more must not hide the newest one.
bool MayBeSame(Presence presence);
/// Compares root `number` with the one that has this commit id.
Result<Presence> LookAt(Storage& storage, uint64_t number, const std::optional<Uuid>& commit_id);
/// Compares the predecessor of `root`, which is not root 1, with the one that `root` names.
Result<Presence> LookBefore(Storage& storage, const Root& root);
/// Returns whether `next` names `root` as its predecessor, or none, in the same store.
bool Follows(const Root& next, const Root& root);

/// Returns the last root that follows `number` without a gap; `number` if there are none.
Result<uint64_t> ProbeForward(Storage& storage, uint64_t number);
/// Returns the first root that precedes `number` without a gap; `number` if there are none.
Result<uint64_t> ProbeBackward(Storage& storage, uint64_t number);
/// Returns whether no root that was put after the first one has been removed. If others have
/// continued after it, it was removed only if there have been more than kKeptRoots.
Result<bool> FirstRootRemains(Storage& storage);

/// Returns the numbers of the roots that the storage lists, from 1 to kMaxRootNumber, ascending.
/// Some may be missing or removed. For repair, and for the removal of roots before a gap.
Result<std::vector<uint64_t>> ListRoots(Storage& storage);

/// Returns kConflict: the store was replaced by another one since it was opened.
Error Replaced(const Storage& storage);

}  // namespace cairn::kv::internal
