#pragma once
/// Changes of the index that add or remove steps, each in one atomic write. An open, too, holds
/// write_mutex while it uses these functions.

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "kv/internal/commit/store_state.h"
#include "kv/internal/index/index.h"
#include "kv/internal/index/index_records.h"
#include "kv/step_info.h"
#include "kv/thread_annotations.h"

namespace cairn::kv::internal {

class CollectedRecords;

/// Returns all step records of an index, ascending by step. kDataLoss: one of them is damaged.
Result<std::vector<StepEntry>> LoadSteps(const Index& index);

/// Steps that are about to be removed, and what is removed with them.
struct Removal {
  std::vector<StepEntry> steps;
  std::vector<Usage> usage;                // of those steps
  std::vector<SegmentInfo> dead_segments;  // not used by any other step
};
/// Returns whether the writer's steps include this generation.
bool HasGeneration(const StoreState& state, uint64_t generation) CAIRN_EXCLUDES(state.mutex);
/// Returns the writer's records of a step: one, or none.
std::vector<StepEntry> FindEntries(const StoreState& state, uint64_t step)
    CAIRN_REQUIRES(state.mutex);

/// Determines what to remove with `steps`. A step that is being committed uses `kept_segments`.
Result<Removal> PlanRemoval(const StoreState& state, std::vector<StepEntry> steps,
                            const std::set<uint64_t>& kept_segments)
    CAIRN_REQUIRES(state.write_mutex);
/// Adds the index changes of a removal to `batch`. `replacement` is the step that replaces a
/// removed step, or null.
void AddToBatch(const StoreState& state, const Removal& removal, const StepEntry* replacement,
                IndexBatch& batch) CAIRN_REQUIRES(state.write_mutex) CAIRN_EXCLUDES(state.mutex);
/// Renames the manifests to *.deleting, all of them or none. Called before the index is written.
Result<void> MarkRemoval(const StoreState& state, const Removal& removal)
    CAIRN_REQUIRES(state.write_mutex);
/// Undoes MarkRemoval.
void UndoRemoval(const StoreState& state, const Removal& removal) CAIRN_REQUIRES(state.write_mutex);
/// Removes dead segments and the renamed manifests. Called after the index was written. Returns the
/// number of freed bytes. The next open for writing removes what cannot be removed now.
uint64_t FinishRemoval(const StoreState& state, const Removal& removal)
    CAIRN_REQUIRES(state.write_mutex);

/// Writes `batch` and makes it durable. After a failure reopens the index, which either drops the
/// batch permanently or shows that it is durable nevertheless. In the second case `is_committed`,
/// which is called after state.steps was refreshed, returns true, and the result is a success. If
/// the index cannot be reopened, sets state.outcome_unknown.
Result<void> CommitBatch(StoreState& state, const IndexBatch& batch,
                         const std::function<bool()>& is_committed)
    CAIRN_REQUIRES(state.write_mutex) CAIRN_EXCLUDES(state.mutex);
/// kFailedPrecondition: outcome_unknown is set.
Result<void> CheckOutcomeKnown(const StoreState& state);

/// Updates steps, next_generation, live and the latest snapshot from the index.
Result<void> RefreshSteps(StoreState& state) CAIRN_REQUIRES(state.write_mutex)
    CAIRN_EXCLUDES(state.mutex);
/// Deletes the records of generations that no step has: those of an attempt that was interrupted.
Result<void> DropOrphanRecords(StoreState& state) CAIRN_REQUIRES(state.write_mutex)
    CAIRN_EXCLUDES(state.mutex);

/// Adds a step to the index as `generation`, from the manifests of all its ranks. Writes its
/// records in batches of bounded size, which are invisible, and then in one atomic write the step
/// record, everything else that must become visible with it, and the removal of the `replaced`
/// steps, which is returned in `removal`. kDataLoss: a manifest is damaged.
struct ManifestFile {
  std::string path;
  uint32_t rank = 0;
};
Result<StepEntry> IndexStep(StoreState& state, const std::vector<ManifestFile>& manifests,
                            uint64_t generation, const std::vector<StepEntry>& replaced,
                            Removal* removal) CAIRN_REQUIRES(state.write_mutex)
    CAIRN_EXCLUDES(state.mutex);
/// Does the same for a manifest whose records are in memory. Requires `records.complete()`.
Result<StepEntry> IndexStep(StoreState& state, CollectedRecords& records,
                            const ManifestRef& manifest, uint64_t generation,
                            const std::vector<StepEntry>& replaced, Removal* removal)
    CAIRN_REQUIRES(state.write_mutex) CAIRN_EXCLUDES(state.mutex);

}  // namespace cairn::kv::internal
