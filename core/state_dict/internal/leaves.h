#pragma once
/// Going through the leaves of state dicts. Threads: all functions are pure.

#include <cstdint>

#include "core/state_dict/state_dict.h"

namespace cairn::core::internal {

/// Null for a tensor that is whole.
inline const Sharding* FindSharding(const StateDict& state, uint32_t tensor) {
  const auto found = state.shardings.find(tensor);
  return found == state.shardings.end() ? nullptr : &found->second;
}

/// Calls `visit(TensorView&)` for the memory of tensor `tensor`: the view, or those of its parts.
template <typename State, typename Visit>
void ForEachMemory(State& state, uint32_t tensor, const Visit& visit) {
  const auto found = state.shardings.find(tensor);
  if (found == state.shardings.end() || found->second.mesh != nullptr) {
    visit(state.tensors[tensor]);
    return;
  }
  for (auto& part : found->second.parts) visit(part.view);
}

/// From here on the tensors' memory, which they have not got yet, is to be the host's.
inline void MoveToHost(StateDict& state) {
  for (uint32_t i = 0; i < state.tensors.size(); ++i) {
    ForEachMemory(state, i, [](TensorView& view) { view.device = kHostDevice; });
  }
}

/// Appends the content of leaf `leaf` of `from` to that of `to`; the node is the caller's.
void AppendContent(const StateDict& from, const Node& node, uint32_t leaf, StateDict& to);

/// kInvalidArgument, naming the key: the memory of a tensor is not what its dtype, shape and
/// strides say (as SpanOf), or leaves and contents do not belong together.
Result<void> CheckMemory(const StateDict& state, const std::vector<Leaf>& leaves);

}  // namespace cairn::core::internal
