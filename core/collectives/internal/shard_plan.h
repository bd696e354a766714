#pragma once
/// What becomes of a target state's leaves when a full state is cut into it.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/collectives/broadcast_options.h"
#include "core/state_dict/host_state.h"
#include "core/state_dict/state_target.h"

namespace cairn::core::internal {

/// A leaf of the full state, without its bytes.
struct FullLeaf {
  std::string fqn;
  NodeKind kind = NodeKind::kValue;
  DType dtype = DType::kUnknown;  // of tensors
  Shape shape;
  Value value;  // of plain values
};

/// kInvalidArgument, naming the key: the state is sharded, or its memory is not what it says.
Result<std::vector<FullLeaf>> DescribeFull(const StateDict& full);

/// For the wire. Requires values that EncodeValue accepts.
std::vector<std::byte> EncodeFull(std::span<const FullLeaf> leaves);
Result<std::vector<FullLeaf>> DecodeFull(std::span<const std::byte> bytes);

struct ShardPlan {
  HostState result;  // allocated; values are in place, tensors wait to be filled
  /// A tensor of `result` that comes from a leaf of the full state.
  struct Fill {
    size_t full_leaf = 0;
    uint32_t tensor = 0;  // of `result`
  };
  std::vector<Fill> fills;  // by full_leaf, ascending
};

/// kInvalidArgument, naming the key: as BroadcastStateDict. kResourceExhausted: no memory.
Result<ShardPlan> PlanShards(std::span<const FullLeaf> full, const StateDict& target,
                             const std::vector<Leaf>& target_leaves, uint32_t rank,
                             const BroadcastOptions& options);

/// A box of the global tensor, and the memory of the result that it goes to.
struct FillPiece {
  Box box;
  TensorTarget target;
};
/// In the order of ShardViewsOf.
std::vector<FillPiece> ShardViewsToFill(ShardPlan& plan, const ShardPlan::Fill& fill,
                                        uint32_t rank);

}  // namespace cairn::core::internal
