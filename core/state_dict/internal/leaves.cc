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
  CAIRN_CHECK(leaves.size() == state.slot.size());
  for (uint32_t i = 0; i < leaves.size(); ++i) {
    if (!IsTensor(state.tree.nodes[leaves[i].node].kind)) continue;
    Result<void> checked;
    ForEachMemory(state, state.slot[i], [&](const TensorView& view) {
      if (!checked) return;
      if (auto span = SpanOf(view); !span) checked = Fail(std::move(span).error());
    });
    if (!checked) return Fail(std::move(checked).error().WithKey(leaves[i].fqn));
  }
  return {};
}

void AddDevices(const StateDict& state, std::set<int>& devices) {
  for (uint32_t i = 0; i < state.tensors.size(); ++i) {
    ForEachMemory(state, i, [&](const TensorView& view) {
      if (view.device != kHostDevice) devices.insert(view.device);
    });
  }
}

}  // namespace cairn::core::internal
