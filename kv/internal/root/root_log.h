#pragma once
/// The roots of a store: finding the newest, and committing the next.
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
///     whose number was taken and is free again. That some root n exists proves nothing: another
///     paused writer may have put it.
///   - The root before the newest exists and has the commit id that the newest names, unless that
///     is root 1. A stray root, which does not follow the root before it, was put by a writer that
///     stopped before this check, and is ignored. Only the writer that has put it may remove it:
///     of two that remove it, the second one could remove what was put in the meantime. A repair
///     that puts the first root of a store under a higher number puts two.
/// The storage must not perform a put that it repeats by itself more than kKeptRoots commits late.
///
/// `hint` has the number of a recent root as text. It saves a listing to searches.
/// Threads: all functions here may run on many threads at once.

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "kv/error.h"
#include "kv/internal/root/root_record.h"
#include "kv/storage.h"

namespace cairn::kv::internal {

inline constexpr std::string_view kHintName = "hint";
/// Number of newest roots that RemoveOldRoots keeps.
inline constexpr uint64_t kKeptRoots = 64;
/// Every root whose number is a multiple of this is written to the hint. A put for each root would
/// make a commit in a directory half again as expensive.
inline constexpr uint64_t kHintInterval = 16;
static_assert(kKeptRoots >= 2 * kHintInterval);

/// Returns the newest root; nothing if there are no roots. kDataLoss: the root is damaged, the root
/// before it is missing, or there is a hint but no root. kUnimplemented: its version is newer.
/// kUnavailable: the storage fails, or its listing is late for longer than a second. Cost: if
/// listings are current (Storage::listings_are_current), a listing and one read of the root;
/// otherwise one read of the hint, a listing if that is of no use, 2 log2(k) calls of Size if the
/// start is k roots behind, two more, and one read of the root.
///
/// A listing that is current is trusted without a look at the predecessor: no root that was put too
/// late has the highest number of its store. So only here, a stray root of another store may be
/// returned, which its uuid shows.
Result<std::optional<Root>> FindNewest(Storage& storage);
/// Returns the newest root of this store. `found` is the result of FindNewest: if that is a root of
/// another store, or a stray one hides the newest, searches below. kConflict: there are only roots
/// of other stores.
Result<std::optional<Root>> FindNewestOf(Storage& storage, const Uuid& store_uuid,
                                         Result<std::optional<Root>> found);

/// Returns the newest root of the store if it is another one than `known`, otherwise nothing.
/// Errors are those of FindNewest; kDataLoss, too, if there are no roots any more; kConflict: the
/// store was replaced by another one. Cost if `known` is the newest: a listing if listings are
/// current, otherwise a call of Size, and a read of the root.
Result<std::optional<Root>> FindNewer(Storage& storage, const Root& known);

/// What became of a commit.
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

/// Returns a root with the contents of `last`, which follows it, and was created now. Times of
/// removed objects are at most `max_lead` after now.
Root Successor(const Root& last, std::chrono::nanoseconds max_lead);

/// Puts `next` with a new commit id, which it stores in `next`, and writes the hint. Requires that
/// this writer has read or committed root `next.number - 1`, whose commit id is `next.predecessor`;
/// or number 1. If the storage reports a failure, or does not have the root that it acknowledged,
/// reads the root to find out whether it was committed, and puts it again if it is absent.
CommitOutcome CommitRoot(Storage& storage, Root& next);

/// Removes `root`, which this writer has put and which does not belong here, if it is there.
/// Returns whether it was. Requires that nobody else removes it.
bool WithdrawRoot(Storage& storage, const Root& root);
/// Returns whether `root` is still there: nobody has replaced the store or removed the root.
Result<bool> IsStillThere(Storage& storage, const Root& root);

/// Returns kConflict, with the name of the writer of `other`, which has taken over the store.
Error TakenOver(const Storage& storage, const Root& other);
/// Returns kConflict: the store was replaced by another one since it was opened.
Error Replaced(const Storage& storage);

/// Removes the roots up to `newest - keep`, in ascending order. Requires `keep >= 2`, and that no
/// CommitRoot of this writer runs at the same time. Cost: with one root to remove, 3 calls.
/// If `oldest` is not 0, no older root exists, and the search for it is omitted.
Result<void> RemoveOldRoots(Storage& storage, uint64_t newest, uint64_t keep = kKeptRoots,
                            uint64_t oldest = 0);

/// Returns the numbers of the roots that the storage lists, ascending. Some may be missing or
/// removed. For repair, and for the removal of roots before a gap.
Result<std::vector<uint64_t>> ListRoots(Storage& storage);

}  // namespace cairn::kv::internal
