#include "core/collectives/internal/shard_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_map>

#include "core/collectives/internal/global_state_layout.h"
#include "core/ranks/internal/message_codec.h"
#include "core/state_dict/internal/leaves.h"
#include "kv/base/mapping.h"

namespace cairn::core::internal {
namespace {

std::unexpected<Error> Invalid(const std::string& fqn, std::string message) {
  return Fail(
      Error{.code = ErrorCode::kInvalidArgument, .message = std::move(message), .key = fqn});
}

std::string Describe(DType dtype, const Shape& shape) {
  return fmt::format("{} [{}]", schema::DTypeName(dtype), fmt::join(shape, ", "));
}

// Whether a tensor, or a part of it, has elements but no memory.
bool LacksMemory(const StateDict& state, uint32_t tensor) {
  bool lacks = false;
  ForEachMemory(state, tensor, [&](const TensorView& view) {
    lacks |= view.data == nullptr && !HasNoElements(view.shape);
  });
  return lacks;
}

Result<void> CheckSame(const FullLeaf& full, const StateDict& target, uint32_t tensor) {
  const TensorView& view = target.tensors[tensor];
  const Sharding* sharding = FindSharding(target, tensor);
  const Shape& shape = sharding == nullptr ? view.shape : sharding->global_shape;
  if (view.dtype == full.dtype && shape == full.shape) return {};
  return Invalid(full.fqn,
                 fmt::format("the full tensor is {}, the target's is {}",
                             Describe(full.dtype, full.shape), Describe(view.dtype, shape)));
}

}  // namespace

Result<std::vector<FullLeaf>> DescribeFull(const StateDict& full) {
  CAIRN_TRY_ASSIGN(auto leaves, full.Leaves());
  CAIRN_TRY(CheckMemory(full, leaves));
  std::vector<FullLeaf> described;
  for (uint32_t i = 0; i < leaves.size(); ++i) {
    const NodeKind kind = full.tree.nodes[leaves[i].node].kind;
    FullLeaf& leaf = described.emplace_back();
    leaf.fqn = std::move(leaves[i].fqn);
    leaf.kind = kind;
    if (!IsTensor(kind)) {
      leaf.value = full.values[full.slot[i]];
      if (auto encoded = EncodeValue(leaf.value); !encoded) {
        return Fail(std::move(encoded).error().WithKey(leaf.fqn));
      }
      continue;
    }
    if (FindSharding(full, full.slot[i]) != nullptr) {
      return Invalid(leaf.fqn, "the full state dict contains a sharded tensor; gather it first");
    }
    leaf.dtype = full.tensors[full.slot[i]].dtype;
    leaf.shape = full.tensors[full.slot[i]].shape;
  }
  return described;
}

std::vector<std::byte> EncodeFull(std::span<const FullLeaf> leaves) {
  MessageWriter writer;
  writer.Number(leaves.size());
  for (const FullLeaf& leaf : leaves) {
    writer.Text(leaf.fqn);
    writer.Number(static_cast<uint64_t>(leaf.kind));
    if (IsTensor(leaf.kind)) {
      writer.Number(static_cast<uint64_t>(leaf.dtype));
      writer.Numbers(leaf.shape);
    } else {
      const auto encoded = EncodeValue(leaf.value);
      CAIRN_CHECK(encoded.has_value());  // DescribeFull has checked it
      writer.Bytes(*encoded);
    }
  }
  std::vector<std::byte> message = std::move(writer).Take();
  CAIRN_DCHECK(DecodeFull(message).has_value());
  return message;
}

Result<std::vector<FullLeaf>> DecodeFull(std::span<const std::byte> bytes) {
  MessageReader reader(bytes);
  kv::AlignedBytes aligned;  // values have any address in the message
  std::vector<FullLeaf> leaves;
  for (uint64_t left = reader.Number(); left > 0 && reader.ok(); --left) {
    FullLeaf& leaf = leaves.emplace_back();
    leaf.fqn = reader.Text();
    leaf.kind = static_cast<NodeKind>(reader.Number());
    if (IsTensor(leaf.kind)) {
      leaf.dtype = static_cast<DType>(reader.Number());
      leaf.shape = reader.Numbers();
    } else if (const auto value = reader.Bytes(); reader.ok()) {
      const std::string_view text(reinterpret_cast<const char*>(value.data()), value.size());
      CAIRN_TRY_ASSIGN(leaf.value, DecodeValue(aligned.Assign(text)));
    }
  }
  if (reader.ok() && reader.at_end()) return leaves;
  return Fail(ErrorCode::kInternal, "rank 0's description of the full state is damaged");
}

Result<ShardPlan> PlanShards(std::span<const FullLeaf> full, const StateDict& target,
                             const std::vector<Leaf>& target_leaves, uint32_t rank,
                             const BroadcastOptions& options) {
  CAIRN_TRY(CheckShardings(target, target_leaves, rank));
  std::unordered_map<std::string_view, size_t> by_fqn;
  for (size_t i = 0; i < full.size(); ++i) by_fqn.emplace(full[i].fqn, i);
  ShardPlan plan;
  StateDict state;
  StateTree tree = target.tree;
  std::vector<bool> keep(target_leaves.size());
  std::vector<bool> owned;
  for (uint32_t i = 0; i < target_leaves.size(); ++i) {
    Node& node = tree.nodes[target_leaves[i].node];
    const auto found = by_fqn.find(target_leaves[i].fqn);
    keep[i] = found != by_fqn.end() || !options.strict;
    if (!keep[i]) continue;
    if (found == by_fqn.end()) {
      AppendContent(target, node, i, state);
      owned.resize(state.tensors.size());
      continue;
    }
    const FullLeaf& leaf = full[found->second];
    const bool was_tensor = IsTensor(node.kind);
    const bool sharded = was_tensor && FindSharding(target, target.slot[i]) != nullptr;
    if (!IsTensor(leaf.kind)) {
      if (sharded)
        return Invalid(leaf.fqn, "the full state has a plain value for a sharded tensor");
      node.kind = NodeKind::kValue;
      state.slot.push_back(static_cast<uint32_t>(state.values.size()));
      state.values.push_back(leaf.value);
      continue;
    }
    if (was_tensor) {
      CAIRN_TRY(CheckSame(leaf, target, target.slot[i]));
      AppendContent(target, node, i, state);
    } else {
      node.kind = leaf.kind;
      state.slot.push_back(static_cast<uint32_t>(state.tensors.size()));
      state.tensors.push_back({.dtype = leaf.dtype, .shape = leaf.shape});
    }
    const uint32_t tensor = state.slot.back();
    plan.fills.push_back({.full_leaf = found->second, .tensor = tensor});
    owned.push_back(options.cpu_offload || LacksMemory(state, tensor));
    if (options.cpu_offload) {
      ForEachMemory(state, tensor, [](TensorView& view) { view.device = kHostDevice; });
    }
  }
  state.tree = PruneTree(tree, keep);
  std::ranges::sort(plan.fills, {}, &ShardPlan::Fill::full_leaf);
  CAIRN_TRY_ASSIGN(plan.result, HostState::Allocate(std::move(state), options.memory, &owned));
  return plan;
}

std::vector<ShardTargetBox> ShardViewsToFill(ShardPlan& plan, const ShardPlan::Fill& fill,
                                             uint32_t rank) {
  const StateTarget target = plan.result.target();
  const TensorView& view = target.state().tensors[fill.tensor];
  const Sharding* sharding = FindSharding(target.state(), fill.tensor);
  std::vector<ShardTargetBox> boxes;
  if (sharding == nullptr) {
    if (!HasNoElements(view.shape)) boxes.push_back({WholeBox(view.shape), target.Writable(view)});
    return boxes;
  }
  auto held = ShardViewsHere(*sharding, view, rank);
  CAIRN_CHECK(held.has_value());  // PlanShards has checked the target
  for (ShardView& shard : *held) {
    boxes.push_back({std::move(shard.box), target.Writable(shard.view)});
  }
  return boxes;
}

}  // namespace cairn::core::internal
