#pragma once
/// Pairs the tensors of a sharded state with complete ones.

#include <cstdint>
#include <vector>

#include "core/state_dict/state_dict.h"

namespace cairn::core::internal {

/// Indices of two leaves with the same FQN, which are tensors.
struct TensorPair {
  uint32_t whole = 0;
  uint32_t shards = 0;
};

/// Returns the tensors that both states have, ascending by `shards`. Requires the leaves of
/// StateDict::Leaves(). kInvalidArgument, naming the key: `whole` contains a sharded tensor; dtypes
/// or global shapes differ; or one state has a value in place of a tensor.
Result<std::vector<TensorPair>> PairTensors(const StateDict& whole,
                                            const std::vector<Leaf>& whole_leaves,
                                            const StateDict& shards,
                                            const std::vector<Leaf>& shard_leaves);

}  // namespace cairn::core::internal
