#pragma once
/// The search for the newest root. root_log.h states what the roots of a store guarantee.
/// Threads: all functions here may run on many threads at once.

#include <optional>

#include "kv/base/error.h"
#include "kv/root/internal/root_record.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// Returns the newest root; nothing if there are no roots. kDataLoss: the root is damaged, the root
/// before it is missing, or there is a hint but no root. kUnimplemented: its version is newer.
/// kUnavailable: the storage fails, or its listing is late for longer than a second. Cost: if
/// listings are current (Storage::listings_are_current), a listing, and one read of the root and of
/// the one before it; otherwise one read of the hint, a listing if that is of no use, 2 log2(k)
/// calls of Size if the start is k roots behind, two more, and the same reads.
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
