#pragma once
/// Writes the tables of steps again, with other locations of payload, and commits them.

#include <cstdint>
#include <memory>

#include "kv/base/error.h"
#include "kv/maintain/internal/live_ranges.h"
#include "kv/maintain/internal/payload_mover.h"
#include "kv/state/internal/root_change.h"
#include "kv/state/internal/store_state.h"

namespace cairn::kv::internal {

/// Makes other compactions and repairs fail while it exists.
inline Result<std::unique_ptr<Turn>> TakeCompactTurn(StoreState& state) {
  return Turn::Take(state, state.compacting, "compact it",
                    "another compaction of this store is still running; wait for it");
}

/// Seals the segments of `mover`, and commits a root in which the steps have new tables that use
/// payload from a segment of which `moves` states that it was moved; also those steps that are
/// committed in the meantime. The segments that no step uses any more are removed when the grace
/// period has passed. Returns the number of steps. Returns the errors of CommitChange, too; after
/// an error, removes the tables that no committed step has.
Result<uint64_t> CommitMoves(StoreState& state, const LiveRanges& moves, PayloadMover& mover);

}  // namespace cairn::kv::internal
