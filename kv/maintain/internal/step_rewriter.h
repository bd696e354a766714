#pragma once
/// Writes the tables of steps again, with other records of chunks, and commits them.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/step_info.h"
#include "kv/maintain/internal/live_ranges.h"
#include "kv/maintain/internal/payload_mover.h"
#include "kv/root/internal/root_record.h"
#include "kv/state/internal/root_change.h"
#include "kv/state/internal/store_state.h"

namespace cairn::kv::internal {

/// Makes other compactions and repairs fail while it exists.
inline Result<std::unique_ptr<Turn>> TakeCompactTurn(StoreState& state) {
  return Turn::Take(state, state.compacting, "compact it",
                    "another compaction of this store is still running; wait for it");
}

/// How the records of chunks change. Keys are those within the column.
struct ChunkChanges {
  std::function<Result<bool>(const StepEntry& entry)> may_affect;
  /// Returns the new record; nothing if it is the same.
  std::function<Result<std::optional<std::vector<std::byte>>>(std::string_view key,
                                                              std::span<const std::byte> record)>
      change;
  /// Whether payload was moved out of the segment; empty: of none.
  std::function<bool(uint64_t segment_id)> replaces;
};

/// Commits a root in which the affected steps have new tables, also those that are committed in the
/// meantime. `added` are segments to which the new records refer. Returns the number of steps.
/// Returns the errors of CommitChange, too; after an error, removes the tables that no committed
/// step has.
Result<uint64_t> CommitChunkChanges(StoreState& state, const ChunkChanges& changes,
                                    std::span<const SegmentInfo> added = {});

/// Seals the segments of `mover`, and commits a root in which the steps have new tables that use
/// payload from a segment of which `moves` states that it was moved; also those steps that are
/// committed in the meantime. The segments that no step uses any more are removed when the grace
/// period has passed. Returns the number of steps. Returns the errors of CommitChange, too; after
/// an error, removes the tables that no committed step has.
Result<uint64_t> CommitMoves(StoreState& state, const LiveRanges& moves, PayloadMover& mover);

}  // namespace cairn::kv::internal
