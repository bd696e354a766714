// Conversion of state dicts between shards and complete tensors, for cairn/state_dict.py.
//
// Functions raise the errors of core/collectives/state_dict_collectives.h. They return a list of
// (FQN, dtype code, shape, bytes), where the bytes are a torch tensor of uint8 over memory that it
// keeps alive, or None for tensors without elements. The memory of one call is one region, which
// is freed with the last tensor in it. All require the GIL.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/collectives/state_dict_collectives.h"
#include "python/src/bindings.h"
#include "python/src/communicator_binding.h"
#include "python/src/convert.h"
#include "python/src/errors.h"
#include "python/src/flatten.h"
#include "python/src/gil.h"

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

// Returns the tensors of `result` whose entry of `wanted` (by leaf) is true; all if it is empty.
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

// Returns by leaf whether the call allocates memory for it.
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

// Returns every sharded tensor of `state` as a complete tensor, on the ranks of `ranks_only` (on
// all ranks if it is empty). Tensors of `targets`, tuples (FQN, dtype code, shape, strides,
// address, device), are written to that memory and not returned; all others are in host memory.
// Collective.
nb::list GatherShards(CommunicatorBinding& communicator, const Batch& state, nb::handle ranks_only,
                      nb::list targets, bool by_nccl, const Streams& streams) {
  core::GatherOptions options;
  options.cpu_offload = true;
  options.streams = ToStreams(streams);
  for (const nb::handle item : targets) {
    const auto fields = nb::cast<nb::tuple>(item);
    options.targets[FromPyText(nb::cast<nb::str>(fields[0]))] = {
        .dtype = static_cast<core::DType>(nb::cast<uint8_t>(fields[1])),
        .shape = FromPyNumbers(fields[2]),
        .strides = FromPyNumbers(fields[3]),
        .data = FromPyAddress(fields[4]),
        .device = nb::cast<int>(fields[5])};
  }
  for (const uint64_t rank : FromPyNumbers(ranks_only)) {
    options.ranks_only.push_back(static_cast<int>(rank));
  }
  auto gathered = communicator.Use([&](core::Communicator& ranks) -> Result<core::HostState> {
    CAIRN_TRY_ASSIGN(options.tensor_communicator, communicator.TensorCommunicator(by_nccl));
    return core::GatherStateDict(state.state, ranks, options);
  });
  std::vector<bool> wanted;
  for (const core::Leaf& leaf : Unwrap(core::FlattenTree(state.state.tree))) {
    wanted.push_back(!options.targets.contains(leaf.fqn));
  }
  return ToPyTensors(Unwrap(std::move(gathered)), wanted);
}

// Distributes rank 0's tensors `full` to `target`: shards are written to their memory. Shards
// without memory, and complete tensors for leaves of `target` that are plain values, are returned.
// Collective.
nb::list BroadcastToShards(CommunicatorBinding& communicator, const Batch& full, Batch& target,
                           bool by_nccl, const Streams& streams) {
  const std::vector<bool> wanted = LeavesWithoutMemory(target.state);
  core::BroadcastOptions options;
  options.streams = ToStreams(streams);
  auto result = communicator.Use([&](core::Communicator& ranks) -> Result<core::HostState> {
    CAIRN_TRY_ASSIGN(options.tensor_communicator, communicator.TensorCommunicator(by_nccl));
    return core::BroadcastStateDict(full.state, core::StateTarget(target.state), ranks, options);
  });
  return ToPyTensors(Unwrap(std::move(result)), wanted);
}

// BroadcastToShards for tensors `full` that every rank has. Not collective.
nb::list DistributeToShards(const Batch& full, Batch& target, uint32_t rank,
                            const Streams& streams) {
  const std::vector<bool> wanted = LeavesWithoutMemory(target.state);
  auto result = OutsideGil([&] {
    return core::DistributeStateDict(full.state, core::StateTarget(target.state), rank,
                                     {.streams = ToStreams(streams)});
  });
  return ToPyTensors(Unwrap(std::move(result)), wanted);
}

}  // namespace

void BindCollectives(nb::module_& m) {
  m.def("gather_shards", &GatherShards, nb::arg("communicator"), nb::arg("state"),
        nb::arg("ranks_only"), nb::arg("targets"), nb::arg("by_nccl"), nb::arg("streams"));
  m.def("broadcast_to_shards", &BroadcastToShards, nb::arg("communicator"), nb::arg("full"),
        nb::arg("target"), nb::arg("by_nccl"), nb::arg("streams"));
  m.def("distribute_to_shards", &DistributeToShards, nb::arg("full"), nb::arg("target"),
        nb::arg("rank"), nb::arg("streams"));
}

}  // namespace cairn::python
