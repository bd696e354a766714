#include "core/collectives/internal/tensor_pairs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <string_view>
#include <unordered_map>

#include "core/state_dict/internal/leaves.h"

namespace cairn::core::internal {
namespace {

std::unexpected<Error> InvalidPair(const std::string& fqn, std::string message) {
  return Fail(
      Error{.code = ErrorCode::kInvalidArgument, .message = std::move(message), .key = fqn});
}

std::string Describe(DType dtype, const Shape& shape) {
  return fmt::format("{} [{}]", schema::DTypeName(dtype), fmt::join(shape, ", "));
}

}  // namespace

Result<std::vector<TensorPair>> PairTensors(const StateDict& whole,
                                            const std::vector<Leaf>& whole_leaves,
                                            const StateDict& shards,
                                            const std::vector<Leaf>& shard_leaves) {
  const auto is_tensor = [](const StateDict& state, const Leaf& leaf) {
    return IsTensor(state.tree.nodes[leaf.node].kind);
  };
  std::unordered_map<std::string_view, uint32_t> by_fqn;
  for (uint32_t i = 0; i < whole_leaves.size(); ++i) {
    by_fqn.emplace(whole_leaves[i].fqn, i);
    if (is_tensor(whole, whole_leaves[i]) && FindSharding(whole, whole.slot[i]) != nullptr) {
      return InvalidPair(whole_leaves[i].fqn,
                         "the full state dict contains a sharded tensor; gather it first");
    }
  }
  std::vector<TensorPair> pairs;
  for (uint32_t i = 0; i < shard_leaves.size(); ++i) {
    const std::string& fqn = shard_leaves[i].fqn;
    const auto found = by_fqn.find(fqn);
    if (found == by_fqn.end()) continue;
    const bool tensor = is_tensor(shards, shard_leaves[i]);
    if (tensor != is_tensor(whole, whole_leaves[found->second])) {
      return InvalidPair(fqn, "a plain value in one state and a tensor in the other");
    }
    if (!tensor) continue;
    const TensorView& full = whole.tensors[whole.slot[found->second]];
    const TensorView& view = shards.tensors[shards.slot[i]];
    const Sharding* const sharding = FindSharding(shards, shards.slot[i]);
    const Shape& shape = sharding == nullptr ? view.shape : sharding->global_shape;
    if (view.dtype != full.dtype || shape != full.shape) {
      return InvalidPair(
          fqn, fmt::format("the full tensor is {}, the sharded one is {}",
                           Describe(full.dtype, full.shape), Describe(view.dtype, shape)));
    }
    pairs.push_back({.whole = found->second, .shards = i});
  }
  return pairs;
}

}  // namespace cairn::core::internal
