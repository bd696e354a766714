#pragma once
/// Changes of the index that add or remove steps, each in one atomic write.

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "kv/internal/commit/store_state.h"
#include "kv/internal/index/index.h"
#include "kv/internal/index/records.h"
#include "kv/step_info.h"

namespace cairn::kv::internal {

class CollectedRecords;

/// All step records of an index, ascending.
Result<std::vector<StepEntry>> LoadSteps(const Index& index);

/// Steps about to go out of existence, and what goes with them.
struct Removal {
  std::vector<StepEntry> steps;
  std::vector<Usage> usage;                // of those steps
  std::vector<SegmentInfo> dead_segments;  // used by no other step
};
/// `kept_segments` are in use by a step that is being committed. Requires write_mutex.
Result<Removal> PlanRemoval(const StoreState& state, std::vector<StepEntry> steps,
                            const std::set<uint64_t>& kept_segments);
/// The index changes of a removal. `replacement` is the step that takes the place, if any.
void AddToBatch(const StoreState& state, const Removal& removal, const StepEntry* replacement,
                IndexBatch& batch);
/// Before the index write: manifests become *.deleting, or none of them. Undo puts them back.
Result<void> MarkRemoval(const StoreState& state, const Removal& removal);
void UndoRemoval(const StoreState& state, const Removal& removal);
/// After the index write: dead segments and the marked manifests go. Returns freed bytes. What
/// cannot be unlinked is swept at the next open.
uint64_t FinishRemoval(const StoreState& state, const Removal& removal);

/// Writes `batch` and makes it durable. On failure reopens the index, which drops the batch for
/// good or shows that it is durable all the same: then `is_committed`, called with state.steps
/// fresh, is true and this is a success. If that fails too, state.outcome_unknown is set.
Result<void> CommitBatch(StoreState& state, const IndexBatch& batch,
                         const std::function<bool()>& is_committed);
/// kFailedPrecondition once outcome_unknown is set.
Result<void> CheckOutcomeKnown(const StoreState& state);

/// Refreshes steps, next_generation, live and the latest snapshot from the index.
Result<void> RefreshSteps(StoreState& state);
/// Deletes records of generations that no step refers to: those of an attempt that died half way.
Result<void> DropOrphanRecords(StoreState& state);

/// Indexes the manifests of one step, all ranks', as `generation`: its records in bounded pieces,
/// then in one last atomic write the step record, what `removal` takes away, and all else.
struct ManifestFile {
  std::string path;
  uint32_t rank = 0;
};
Result<StepEntry> IndexStep(StoreState& state, const std::vector<ManifestFile>& manifests,
                            uint64_t generation, const std::vector<StepEntry>& replaced,
                            Removal* removal);
/// The same for a manifest whose records are at hand.
Result<StepEntry> IndexStep(StoreState& state, CollectedRecords& records,
                            const ManifestRef& manifest, uint64_t generation,
                            const std::vector<StepEntry>& replaced, Removal* removal);

}  // namespace cairn::kv::internal
