#pragma once
/// Plans what one rank writes of its state dict, from the state alone, without communication.
///
/// 1. Leaves are read in tree order: values are encoded, tensors are divided into replicated ones
///    (without a Sharding) and sharded ones.
/// 2. Owners and aliases are decided: replicated tensors by address ranges (aliases.h), sharded
///    ones only if they are the same part of the same memory (tied weights).
/// 3. Every box that this rank holds is cut into chunks. A box that only this rank holds is written
///    by it. The boxes that the same ranks hold (a ReplicaGroup) are divided: their chunks, in key
///    order, form one range of equal bytes per rank. Replicated tensors are boxes that every rank
///    holds.
///
/// Invariant: ranks with equal states plan the same boxes, chunks and owners, so that each chunk is
/// planned by exactly one of them.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/save/internal/aliases.h"
#include "core/save/internal/save_plan.h"
#include "core/save/save_options.h"
#include "core/state_dict/state_dict.h"
#include "core/tensor/internal/replica_group.h"
#include "core/tensor/sharding.h"

namespace cairn::core::internal {

/// Largest chunk that a save accepts: the page digests of a chunk are held in memory.
inline constexpr uint64_t kMaxChunkBytes = uint64_t{1} << 30;

/// Checks what does not depend on the state. kInvalidArgument: options.chunk_bytes,
/// options.max_deltas or the annotations are not valid.
Result<void> CheckSaveOptions(const SaveOptions& options);

/// Returns the FQNs and the records of the values of a state, in key order. `leaves` are the leaves
/// of the state. kInvalidArgument: a value is too large; names the key.
Result<std::vector<std::pair<std::string, std::vector<std::byte>>>> EncodeValues(
    const StateDict& state, std::span<const Leaf> leaves);

/// Plans one save. Ownership: borrows the options, and the state during Plan. Threads: one.
class SavePlanner {
 public:
  SavePlanner(const SaveOptions& options, const RankInWorld& self)
      : options_(options), self_(self) {}

  /// Call at most once. kInvalidArgument: duplicate FQNs, an FQN with NUL, bad tensors or
  /// shardings, values that are too large; names the key. Also: options.chunk_bytes is 0 or above
  /// kMaxChunkBytes, or options.replicated_mesh lacks this rank.
  Result<SavePlan> Plan(const StateDict& state);

 private:
  /// A tensor of the state dict. `sharding` is null if it is replicated.
  struct LeafTensor {
    NamedTensor named;
    const Sharding* sharding = nullptr;
  };

  Result<void> SetReplicatedGroup();
  Result<std::vector<LeafTensor>> ReadLeaves(const StateDict& state);
  Result<void> AddReplicated(PlannedTensor tensor);
  Result<void> AddSharded(const LeafTensor& leaf);
  /// Returns the FQN of an earlier tensor that is the same part of the same memory, or null.
  const std::string* FindSame(const LeafTensor& leaf, const std::vector<ShardView>& held);
  /// Adds a box of the tensor that was added last, with all of its chunks.
  Result<void> AddShard(ShardView held, const ReplicaGroup& group);
  /// Sorts tensors by key and shards by tensor, and fills shards_of_group_.
  void Sort();
  /// Gives each of the group's tensors to one rank, and empties the shards of the other ranks.
  void DivideAmong(const ReplicaGroup& group, const std::vector<size_t>& shards);
  /// Removes shards without chunks, and sums up.
  void Finish();

  const SaveOptions& options_;
  const RankInWorld self_;
  std::shared_ptr<const DeviceMesh> replicated_mesh_;  // shared with the options, or created here
  EqualMeshes meshes_;
  ReplicaGroup replicated_group_;
  SavePlan plan_;
  std::vector<ReplicaGroup> group_of_shard_;  // in the order in which shards were added
  std::map<ReplicaGroup, std::vector<size_t>> shards_of_group_;  // indices, in key order
  std::map<const std::byte*, const LeafTensor*> first_at_;       // by the address of their memory
};

/// Plans a save by this rank; see SavePlanner::Plan.
Result<SavePlan> PlanSave(const StateDict& state, const SaveOptions& options,
                          const RankInWorld& self = {});

}  // namespace cairn::core::internal
