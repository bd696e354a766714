#pragma once
/// Reads of single roots and of the hint, and the search for the newest root. root_log.h states
/// what the roots of a store guarantee. Threads: all functions here may run on many at once.

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

/// The pause before a request is repeated for the `attempt`-th time, from 0 on.
inline std::chrono::milliseconds PauseAfter(int attempt) {
  return std::chrono::milliseconds(2) * (1 << std::min(attempt, 8));
}

/// Returns root `number`; nothing if it does not exist. kDataLoss: it is damaged.
Result<std::optional<Root>> ReadRoot(Storage& storage, uint64_t number);
/// As ReadRoot, but decodes only what identifies the root (DecodeRootIdentity).
Result<std::optional<Root>> ReadRootIdentity(Storage& storage, uint64_t number);
Result<bool> RootExists(Storage& storage, uint64_t number);
/// Returns the number of a root that the store has had; 0 if the hint is absent, torn, or another
/// store's.
Result<uint64_t> ReadHint(Storage& storage, const Uuid& store_uuid);
/// Writes the hint: root `number` is confirmed. Best effort: with an old hint, a search takes
/// longer, and does not notice the loss of newer roots.
void WriteHint(Storage& storage, const Uuid& store_uuid, uint64_t number);
/// As WriteHint, but does not change a hint that names this root or a newer one, or a root of
/// another store, or that cannot be read.
void RaiseHint(Storage& storage, const Uuid& store_uuid, uint64_t number);

/// The presence of a root with a number.
enum class Presence : uint8_t {
  kAbsent,
  kSame,
  kUnclear,  // a root that may be the same: it is damaged, or the commit id is not known
  kOther,
};

/// Damage of a root that nobody needs any more must not hide the newest one.
bool MayBeSame(Presence presence);
/// Compares the root that has the number of `root` now with `root`.
Result<Presence> LookAgain(Storage& storage, const Root& root);
/// Compares the predecessor of `root`, which is not root 1, with the one that `root` names.
/// kAbsent, too, if it names none: the first root of a rebuild is never the newest.
Result<Presence> LookBefore(Storage& storage, const Root& root);
/// Returns whether `next` names `root` as its predecessor, in the same store.
bool Follows(const Root& next, const Root& root);

/// Returns the last root that follows `number` without a gap; `number` if there are none.
Result<uint64_t> ProbeForward(Storage& storage, uint64_t number);
/// Returns the first root that precedes `number` without a gap; `number` if there are none.
Result<uint64_t> ProbeBackward(Storage& storage, uint64_t number);
/// Returns whether no root that was put after the first one of this store has been removed. If
/// others have continued after it, it was removed only if there have been more than kKeptRoots.
Result<bool> FirstRootRemains(Storage& storage, const Uuid& store_uuid);

/// Returns the numbers of the roots that the storage lists, from 1 to kMaxRootNumber, ascending.
/// Some may be missing or removed. For repair, and for the removal of roots before a gap.
Result<std::vector<uint64_t>> ListRoots(Storage& storage);

/// Returns kConflict: the store was replaced by another one since it was opened.
Error Replaced(const Storage& storage);

/// Returns the newest root; nothing if there are no roots. kDataLoss: the root is damaged, the root
/// before it is missing, or it is older than the hint, for longer than a second. kUnimplemented:
/// its version is newer. kUnavailable: the storage fails, or its listing is late for longer than a
/// second. Cost: one read of the hint; and, if listings are current
/// (Storage::listings_are_current), a listing at the same time, and one read of the root and of the
/// one before it; otherwise a listing if the hint is of no use, 2 log2(k) calls of Size if the
/// start is k roots behind, two more, and the same reads.
///
/// A root that is returned belongs to the chain of the store, or, if the store was replaced, to the
/// chain of another store, whose uuid it has.
Result<std::optional<Root>> FindNewest(Storage& storage);
/// As FindNewest, but does not look at the root before the one that a current listing names. If the
/// listing was so long ago that the root is gone, and a writer that was paused has put one under
/// its number, returns that: call FindNewer before the result is used.
Result<std::optional<Root>> FindNewestUnchecked(Storage& storage);
/// Returns the newest root of this store. `found` is the result of FindNewest: if that is a root of
/// another store, or a stray one hides the newest, searches below. kConflict: all roots belong to
/// other stores.
Result<std::optional<Root>> FindNewestOf(Storage& storage, const Uuid& store_uuid,
                                         Result<std::optional<Root>> found);

/// Returns the newest root of the store if it is another one than `known`, otherwise nothing.
/// Returns the errors of FindNewest; kDataLoss, too, if there are no roots any more; kConflict: the
/// store was replaced by another one. Cost if `known` is the newest: a listing if listings are
/// current, otherwise a call of Size, and a read of the root.
Result<std::optional<Root>> FindNewer(Storage& storage, const Root& known);

}  // namespace cairn::kv::internal
