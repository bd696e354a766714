#pragma once
/// Access to the contents of the leaves of state dicts. Threads: all functions are safe.

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/internal/arena.h"
#include "core/state_dict/state_dict.h"

namespace cairn::core::internal {

/// A Leaf whose FQN is in an arena.
struct LeafName {
  uint32_t node = 0;
  std::string_view fqn;
};

/// Returns what FlattenTree returns, or for a state what StateDict::Leaves returns, with the FQNs
/// in `arena`.
Result<std::vector<LeafName>> LeafNames(const StateTree& tree, Arena& arena);
Result<std::vector<LeafName>> LeafNames(const StateDict& state, Arena& arena);

/// True if EncodeTree returns `record` for `tree`, without extensions. Requires a record that
/// EncodeTree returned without extensions. Cost: one walk over both, without an allocation.
bool IsRecordOf(std::span<const std::byte> record, const StateTree& tree);

/// Adds to `devices` those, except the host, whose memory contains tensors of `state`.
void AddDevices(const StateDict& state, std::set<int>& devices);

/// Returns null for a tensor that is not sharded.
inline const Sharding* FindSharding(const StateDict& state, uint32_t tensor) {
  const auto found = state.shardings.find(tensor);
  return found == state.shardings.end() ? nullptr : &found->second;
}

/// Calls `visit(TensorView&)` for the memory of a tensor: its view, or the views of its parts.
/// Requires tensor < state.tensors.size().
template <typename State, typename Visit>
void ForEachMemory(State& state, uint32_t tensor, const Visit& visit) {
  const auto found = state.shardings.find(tensor);
  if (found == state.shardings.end() || found->second.mesh != nullptr) {
    visit(state.tensors[tensor]);
    return;
  }
  for (auto& part : found->second.parts) visit(part.view);
}

/// Checks the memory of all tensors. Requires the leaves of state.Leaves(). kInvalidArgument,
/// naming the key: SpanOf rejects a tensor, or a part of one.
Result<void> CheckMemory(const StateDict& state, const std::vector<Leaf>& leaves);

}  // namespace cairn::core::internal
