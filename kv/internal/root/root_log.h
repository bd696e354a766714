#pragma once
/// The roots of a store: finding the newest, and committing the next.
///
/// Root n+1 is put if it is absent, which exactly one writer can do. Old roots are removed in
/// ascending order, and the newest ones never. From this follows:
///   - If root n+1 is absent, and root n exists afterwards, root n was the newest in between.
///   - If root n+1 was put, and root n exists afterwards, root n+1 was not there before. Without
///     this check, a writer that was paused while others committed more than kKeptRoots roots would
///     put a root whose number was taken and is free again.
///   - The root before the newest exists, unless that is root 1. A root without its predecessor was
///     put by a writer that stopped before this check, and is ignored. A repair that puts the first
///     root of a store under a higher number therefore puts two.
///
/// `hint` has the number of a recent root as text. It saves a listing to searches.
/// Threads: all functions here may run on many threads at once.

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
Result<std::optional<Root>> FindNewest(Storage& storage);

/// Returns the newest root if it is another one than `known`, otherwise nothing. Errors are those
/// of FindNewest; kDataLoss, too, if there are no roots any more. Cost if `known` is the newest: a
/// listing if listings are current, otherwise 2 calls of Size.
Result<std::optional<Root>> FindNewer(Storage& storage, const Root& known);

/// What became of a commit.
struct CommitOutcome {
  enum class State {
    kCommitted,
    kNotCommitted,  // and never will be: another writer has committed, or nothing was written
    kUnknown,       // the root may exist, or begin to exist later; only a new open finds out
  };
  State state = State::kCommitted;
  /// Unless committed. kConflict: another writer has taken over the store; the message names it.
  Error error;
  /// The root of the other writer that has the number, if one was found.
  std::optional<Root> other;
};

/// Puts `next` with a new commit id, which it stores in `next`, and writes the hint. Requires that
/// root `next.number - 1` exists, and that this writer has read or committed it; or number 1.
/// If the storage reports a failure, or does not have the root that it acknowledged, reads the root
/// to find out whether it was committed, and puts the same root again if it is absent.
CommitOutcome CommitRoot(Storage& storage, Root& next);

/// Returns kConflict, with the name of the writer of `other`, which has taken over the store.
Error TakenOver(const Storage& storage, const Root& other);

/// Removes the roots up to `newest - keep`, in ascending order. Requires `keep >= 2`, and that no
/// CommitRoot of this writer runs at the same time. Cost: with one root to remove, 3 calls.
/// If `oldest` is not 0, no older root exists, and the search for it is omitted.
Result<void> RemoveOldRoots(Storage& storage, uint64_t newest, uint64_t keep = kKeptRoots,
                            uint64_t oldest = 0);

/// Returns the numbers of the roots that the storage lists, ascending. Some may be missing or
/// removed. For repair, and for the removal of roots before a gap.
Result<std::vector<uint64_t>> ListRoots(Storage& storage);

}  // namespace cairn::kv::internal
