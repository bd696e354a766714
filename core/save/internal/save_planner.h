#pragma once
/// Plans what one rank writes of its state dict, from the state alone, without communication.
///
/// 1. Leaves are read in tree order: values are encoded, tensors are divided into replicated ones
///    (without a Sharding) and sharded ones.
/// 2. Owners and aliases are decided: replicated tensors by address ranges, sharded ones
///    only if they are the same part of the same memory (tied weights).
/// 3. A box that only this rank holds is written by it. The tensors of which the same ranks hold
///    boxes (a ReplicaGroup) are divided among these ranks, in about equal bytes per rank.
///    Replicated tensors are boxes that every rank holds.
/// 4. The boxes that this rank writes are cut into chunks.
///
/// Invariant: ranks with equal states plan the same boxes, chunks and owners, so that each chunk is
/// planned by exactly one of them.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/save/internal/save_plan.h"
#include "core/save/save_options.h"
#include "core/state_dict/internal/leaves.h"
#include "core/state_dict/state_dict.h"
#include "core/step/internal/lookup.h"
#include "core/tensor/internal/replica_group.h"
#include "core/tensor/sharding.h"

namespace cairn::core::internal {

/// Largest chunk that a save accepts: the page digests of a chunk are held in memory.
inline constexpr uint64_t kMaxChunkBytes = uint64_t{1} << 30;

/// Checks what does not depend on the state. kInvalidArgument: options.chunk_bytes,
/// options.max_deltas or the annotations are not valid.
Result<void> CheckSaveOptions(const SaveOptions& options);

/// Returns the FQNs and the records of the values of a state, in key order. `leaves` are the leaves
/// of the state. With `long_as_chunks`, as on rank 0, the records of long values do not have their
/// bytes. kInvalidArgument: a value is too large, or a ChunkedValue on rank 0; names the key.
Result<std::vector<NamedRecord>> EncodeValues(const StateDict& state,
                                              std::span<const LeafName> leaves,
                                              bool long_as_chunks);

/// Plans only the hidden tensors of long values, whose bytes it borrows.
Result<SavePlan> PlanLongValues(std::span<const std::pair<std::string, Value>> values,
                                const SaveOptions& options);

/// Plans a save by this rank. On rank 0, long values become hidden tensors. The other ranks send
/// their values, of which rank 0 writes those that it does not have (SaveSession::WriteLongValues).
/// A ChunkedValue on another rank leaves the bytes to rank 0, which must have the value.
/// kInvalidArgument: duplicate FQNs, an FQN with NUL, bad tensors or
/// shardings, values that are too large; names the key. Also: options.chunk_bytes is 0 or above
/// kMaxChunkBytes, or options.replicated_mesh lacks this rank.
Result<SavePlan> PlanSave(const StateDict& state, const SaveOptions& options,
                          const RankInWorld& self = {});

/// Applies SaveOptions::unchanged to a plan: marks the shards in host memory of which the caller
/// states that they have not changed, and chooses one of their chunks to be compared nevertheless:
/// another one for each step. Removes the marks of an earlier save of the same plan.
/// kInvalidArgument: a pattern is not valid.
Result<void> MarkStatedUnchanged(SavePlan& plan, const SaveOptions& options, uint64_t step);

/// Removes the marks of tensors of which `base` may have another one under the same FQN: several of
/// its leaves had the same texts, so they were escaped, and the plan lacks some of them. Without
/// the tree of `base`, removes all marks. Cost: digests the structure of the plan; reads that of
/// `base` if it is another one, which `trees` does not have.
void UnmarkRenamed(SavePlan& plan, const StepView& base, uint64_t step, TreeCache& trees);

/// Chooses the chunk to be compared in a plan that has the marks of MarkStatedUnchanged.
void ChooseComparedChunk(SavePlan& plan, uint64_t step);

/// The error for a compared chunk that has changed.
Error NotUnchangedError(std::string_view fqn);

}  // namespace cairn::core::internal
