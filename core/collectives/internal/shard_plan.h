#pragma once
/// Plans how the leaves of a target state are filled from a full state.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/collectives/state_dict_collectives.h"
#include "core/state_dict/host_state.h"
#include "core/state_dict/state_dict.h"

namespace cairn::core::internal {

/// A leaf of the full state, without its bytes.
struct FullLeaf {
  std::string fqn;
  NodeKind kind = NodeKind::kValue;
  DType dtype = DType::kUnknown;  // for tensors
  Shape shape;
  Value value;  // for plain values
};

/// Describes the leaves of a full state. kInvalidArgument: StateDict::Leaves or CheckMemory rejects
/// it, a tensor is sharded, or a value cannot be encoded.
Result<std::vector<FullLeaf>> DescribeFull(const StateDict& full);

/// Encodes a description as a message. Requires values that EncodeValue accepts.
std::vector<std::byte> EncodeFull(std::span<const FullLeaf> leaves);
/// kInternal: `bytes` are not a description.
Result<std::vector<FullLeaf>> DecodeFull(std::span<const std::byte> bytes);

struct ShardPlan {
  HostState result;  // contains the values; its tensors are allocated but not filled
  /// A tensor of `result` that is filled from a leaf of the full state.
  struct Fill {
    size_t full_leaf = 0;
    uint32_t tensor = 0;  // index in `result`
  };
  std::vector<Fill> fills;  // ascending by full_leaf
};

/// Requires the leaves of target.Leaves(). kInvalidArgument, naming the key: a leaf of the target
/// and its counterpart differ in dtype or global shape, the full state has a value for a sharded
/// tensor, or CheckShardings rejects the target. kResourceExhausted: there is not enough memory.
Result<ShardPlan> PlanShards(std::span<const FullLeaf> full, const StateDict& target,
                             const std::vector<Leaf>& target_leaves, uint32_t rank,
                             const BroadcastOptions& options);

/// A box of the global tensor, and the memory of the result that receives it.
struct ShardTargetBox {
  Box box;
  TensorTarget target;
};
/// Returns the boxes that `rank` fills, in the order of ShardViewsOf.
std::vector<ShardTargetBox> ShardViewsToFill(ShardPlan& plan, const ShardPlan::Fill& fill,
                                             uint32_t rank);

}  // namespace cairn::core::internal
