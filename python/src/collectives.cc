// The state-dict collectives, with results as torch tensors.

#include "python/src/collectives.h"

#include <nanobind/ndarray.h>

#include <memory>
#include <vector>

#include "core/state_dict_collectives.h"
#include "python/src/convert.h"
#include "python/src/errors.h"

namespace cairn::python {
namespace {

using Bytes = nb::ndarray<nb::pytorch, uint8_t, nb::ndim<1>>;
using Shared = std::shared_ptr<const core::HostState>;

nb::object ToPyBytes(const Shared& owner, const core::TensorView& view, uint64_t length_bytes) {
  if (length_bytes == 0) return nb::none();
  nb::capsule keep(new Shared(owner),
                   [](void* held) noexcept { delete static_cast<Shared*>(held); });
  auto* const data = reinterpret_cast<uint8_t*>(const_cast<std::byte*>(view.data));
  return nb::cast(Bytes(data, {length_bytes}, keep));
}

// The tensors of `result` for which `wanted` holds, by leaf.
nb::list ToPyTensors(core::HostState result, const std::vector<bool>& wanted) {
  const Shared owner = std::make_shared<const core::HostState>(std::move(result));
  const core::StateDict& state = owner->state();
  const auto leaves = Unwrap(core::FlattenTree(state.tree));
  nb::list tensors;
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (!core::IsTensor(state.tree.nodes[leaves[i].node].kind)) continue;
    if (!wanted.empty() && !wanted[i]) continue;
    const core::TensorView& view = state.tensors[state.slot[i]];
    const uint64_t length_bytes = Unwrap(core::TensorBytes(view.dtype, view.shape));
    tensors.append(nb::make_tuple(ToPyText(leaves[i].fqn), static_cast<uint8_t>(view.dtype),
                                  ToPyNumbers(view.shape), ToPyBytes(owner, view, length_bytes)));
  }
  return tensors;
}

// The leaves of a target that are given memory by the call.
std::vector<bool> LeavesWithoutMemory(const core::StateDict& target) {
  std::vector<bool> result;
  for (const core::Node& node : target.tree.nodes) {
    if (core::IsContainer(node.kind)) continue;
    const uint32_t slot = target.slot[result.size()];
    bool has_memory = false;
    if (core::IsTensor(node.kind)) {
      const auto sharding = target.shardings.find(slot);
      has_memory = target.tensors[slot].data != nullptr ||
                   (sharding != target.shardings.end() && sharding->second.mesh == nullptr);
    }
    result.push_back(!has_memory);
  }
  return result;
}

}  // namespace

nb::list GatherShards(CommunicatorBinding& communicator, const Batch& state,
                      nb::handle ranks_only) {
  core::GatherOptions options;
  for (const uint64_t rank : FromPyNumbers(ranks_only)) {
    options.ranks_only.push_back(static_cast<int>(rank));
  }
  auto gathered = communicator.Use([&](core::Communicator& ranks) {
    return core::GatherStateDict(state.state, ranks, options);
  });
  return ToPyTensors(Unwrap(std::move(gathered)), {});
}

nb::list BroadcastToShards(CommunicatorBinding& communicator, const Batch& full, Batch& target) {
  const std::vector<bool> wanted = LeavesWithoutMemory(target.state);
  auto result = communicator.Use([&](core::Communicator& ranks) {
    return core::BroadcastStateDict(full.state, core::StateTarget(target.state), ranks);
  });
  return ToPyTensors(Unwrap(std::move(result)), wanted);
}

nb::list DistributeToShards(const Batch& full, Batch& target, uint32_t rank) {
  const std::vector<bool> wanted = LeavesWithoutMemory(target.state);
  auto result = [&] {
    nb::gil_scoped_release no_gil;
    return core::DistributeStateDict(full.state, core::StateTarget(target.state), rank);
  }();
  return ToPyTensors(Unwrap(std::move(result)), wanted);
}

}  // namespace cairn::python
