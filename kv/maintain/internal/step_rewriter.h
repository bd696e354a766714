#pragma once
/// Writes the tables of steps again, with other locations of payload, and commits them.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/step_info.h"
#include "kv/maintain/internal/live_ranges.h"
#include "kv/root/internal/root_record.h"
#include "kv/state/internal/root_change.h"
#include "kv/state/internal/store_state.h"
#include "kv/table/internal/table_stack.h"

namespace cairn::kv::internal {

/// Makes other compactions and repairs fail while it exists.
inline Result<std::unique_ptr<Turn>> TakeCompactTurn(StoreState& state) {
  return Turn::Take(state, state.compacting, "compact it",
                    "another compaction of this store is still running; wait for it");
}

/// The destructor removes the tables that no committed step has. Threads: one.
class StepRewriter {
 public:
  /// Payload was moved to the segments `added`. All arguments outlive it.
  StepRewriter(StoreState& state, const PayloadMoves& moves, std::span<const SegmentInfo> added);
  ~StepRewriter();
  StepRewriter(const StepRewriter&) = delete;
  StepRewriter& operator=(const StepRewriter&) = delete;

  /// Writes new tables for the steps of the newest root that use a segment from which payload
  /// was moved and that were not rewritten yet.
  Result<void> Rewrite();
  /// Commits a root in which the steps have their new tables, including those steps that have been
  /// committed since Rewrite. The segments that no step uses any more are removed when the grace
  /// period has passed. Returns the number of steps. Returns the errors of CommitChange.
  Result<uint64_t> Commit();

 private:
  struct Rewritten {
    StepEntryPtr old_entry;
    StepEntry entry;
  };
  Result<void> RewriteStep(const StepEntryPtr& old_entry, const StepEntry* base);
  Result<bool> IsAffected(const StepEntry& entry) const;
  Result<void> ForgetStale();

  StoreState& state_;
  const PayloadMoves& moves_;
  std::map<uint64_t, SegmentInfo> added_;
  std::map<uint64_t, SegmentInfo> replaced_;
  std::map<uint64_t, Rewritten> rewritten_;  // by step
  std::vector<ObjectId> new_tables_;
  bool is_committed_ = false;
};

}  // namespace cairn::kv::internal
