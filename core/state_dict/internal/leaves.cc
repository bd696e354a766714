// Contents of leaves.

#include "core/state_dict/internal/leaves.h"

#include "core/tensor/internal/memory_span.h"

namespace cairn::core::internal {

void AppendContent(const StateDict& from, const Node& node, uint32_t leaf, StateDict& to) {
  const uint32_t slot = from.slot[leaf];
  if (!IsTensor(node.kind)) {
    to.slot.push_back(static_cast<uint32_t>(to.values.size()));
    to.values.push_back(from.values[slot]);
    return;
  }
  const auto index = static_cast<uint32_t>(to.tensors.size());
  if (const Sharding* sharding = FindSharding(from, slot)) to.shardings.emplace(index, *sharding);
  to.slot.push_back(index);
  to.tensors.push_back(from.tensors[slot]);
}

Result<void> CheckMemory(const StateDict& state, const std::vector<Leaf>& leaves) {
  if (leaves.size() != state.slot.size()) {
    return Fail(ErrorCode::kInvalidArgument, "a state dict has not one content a leaf");
  }
  for (uint32_t i = 0; i < leaves.size(); ++i) {
    const bool tensor = IsTensor(state.tree.nodes[leaves[i].node].kind);
    if (state.slot[i] >= (tensor ? state.tensors.size() : state.values.size())) {
      return Fail(Error{.code = ErrorCode::kInvalidArgument,
                        .message = "a leaf has no content",
                        .key = leaves[i].fqn});
    }
    if (!tensor) continue;
    Result<void> checked;
    ForEachMemory(state, state.slot[i], [&](const TensorView& view) {
      if (!checked) return;
      if (auto span = SpanOf(view); !span) checked = Fail(std::move(span).error());
    });
    if (!checked) return Fail(std::move(checked).error().WithKey(leaves[i].fqn));
  }
  return {};
}

}  // namespace cairn::core::internal
