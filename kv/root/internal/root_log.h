#pragma once
/// The roots of a store, and the commit of the next. root_search.h finds the newest.
///
/// Root n+1 is put if it is absent, which exactly one writer can do, and contains the commit id of
/// root n. Every put has a new commit id, so an object with this id is put at most once, and is
/// never there again after its removal. Old roots are removed in ascending order, and the newest
/// ones never. From this follows:
///   - If root n+1 is absent, and root n with the known commit id exists afterwards, root n was the
///     newest in between: no root is removed before its predecessor.
///   - If root n+1 was put, and root n with the known commit id exists afterwards, number n+1 was
///     never free for a second time, and no other store has taken the place of this one. Otherwise,
///     a writer that was paused while others committed more than kKeptRoots roots would put a root
///     whose number was taken and is free again. The existence of some root n proves nothing:
///     another paused writer may have put it.
///   - The root before the newest exists and has the commit id that the newest names, unless that
///     is root 1. Every other root names one, except for the first of a rebuild. A stray root,
///     which does not follow the root before it, was put by a writer that stopped before this
///     check, and is ignored. Only the writer that has put it may remove it: if two writers removed
///     it, the second one could remove a root that was put in the meantime.
///     A rebuild puts two roots, of which the first one is never the newest.
/// The storage must not perform a put that it repeats by itself more than kKeptRoots commits late.
///
/// `hint` names a root that was confirmed, and so is a lower bound of the newest: a search that
/// finds an older root has noticed that newer ones are lost. It also saves a listing. A commit
/// writes it when its root is confirmed; or, where each request takes long, at the same time as
/// other requests and with the number of the root before, so that it is late by one root until the
/// store is closed.
/// Threads: all functions here may run on many threads at once.

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "kv/root/internal/root_record.h"
#include "kv/root/internal/root_search.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// Each commit makes one root an old one. More are there only if removals have failed before.
inline constexpr uint64_t kMaxRemovedRoots = 1'000;

/// The outcome of a commit.
struct CommitOutcome {
  enum class State {
    kCommitted,
    kNotCommitted,  // and never will be: another writer has committed, or nothing was written
    kUnknown,       // the root may exist, or begin to exist later; only a new open finds out
  };
  State state = State::kCommitted;
  /// Unless committed. kConflict: another writer has taken over the store, and the message names
  /// it; or the store was replaced by another one.
  Error error;
  /// The root of the other writer that has the number, if one was found.
  std::optional<Root> other;
};

/// Checks that a writer may take the numbers and epochs after these, which object `name` has. What
/// one writer takes is then far from the end of both. kDataLoss: no store comes so far, so the
/// object was forged or damaged.
Result<void> CheckCanFollow(const Storage& storage, std::string_view name, uint64_t number,
                            uint32_t epoch);

/// Returns a root with the contents of `last`, which follows it, and was created now. Times of
/// removed objects are at most `max_lead` after now.
Root Successor(const Root& last, std::chrono::nanoseconds max_lead);

/// Puts `next` with a new commit id, which it stores in `next`, and writes the hint. Requires that
/// this writer has read or committed root `next.number - 1`, whose commit id is `next.predecessor`;
/// or number 1. If the storage reports a failure, or does not have the root that it acknowledged,
/// reads the root to find out whether it was committed, and puts it again if it is absent.
CommitOutcome CommitRoot(Storage& storage, Root& next);

/// Writes the hint of `root`, which is the last one of this writer, if commits write it late, and
/// unless other writers or another store have written it since.
void WriteLateHint(Storage& storage, const Root& root);

/// Removes `root`, which this writer has put, if it exists and `belongs` returns false after a look
/// at it: if its own store has returned to the address by then, the root belongs there, and others
/// may have followed it. Returns whether it removed it. Requires that nobody else removes it.
bool WithdrawRoot(Storage& storage, const Root& root, const std::function<Result<bool>()>& belongs);
/// Returns whether `root` is still there: nobody has replaced the store or removed the root.
Result<bool> IsStillThere(Storage& storage, const Root& root);

/// Returns kConflict, with the name of the writer of `other`, which has taken over the store.
Error TakenOver(const Storage& storage, const Root& other);

/// Removes the roots up to `newest - keep`, in ascending order, and at most kMaxRemovedRoots of
/// them. Returns the number of the oldest one that remains. Requires `keep >= 2`, and that no
/// CommitRoot of this writer runs at the same time. Cost: with one root to remove, 3 calls; a
/// search makes a number of calls that is logarithmic in the number of roots. If `oldest` is not 0,
/// no older root exists, and the search for it is omitted.
Result<uint64_t> RemoveOldRoots(Storage& storage, uint64_t newest, uint64_t keep = kKeptRoots,
                                uint64_t oldest = 0);

}  // namespace cairn::kv::internal
