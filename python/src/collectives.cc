// Conversion of state dicts between shards and complete tensors, for cairn/state_dict.py.
//
// The caller gives the memory of all tensors. Functions raise the errors of
// core/collectives/state_dict_collectives.h. All require the GIL.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstdint>

#include "core/collectives/state_dict_collectives.h"
#include "python/src/bindings.h"
#include "python/src/communicator_binding.h"
#include "python/src/convert.h"
#include "python/src/errors.h"
#include "python/src/flatten.h"
#include "python/src/gil.h"

namespace cairn::python {
namespace {

// Copies every sharded tensor of `state`, complete, to the tensor of `whole` with the same FQN, on
// the ranks of `ranks_only` (on all ranks if it is empty). Collective.
void GatherShards(CommunicatorBinding& communicator, const Batch& state, Batch& whole,
                  nb::handle ranks_only, bool by_nccl, const Streams& streams) {
  core::CollectiveOptions options{.streams = ToStreams(streams)};
  for (const uint64_t rank : FromPyNumbers(ranks_only)) {
    options.ranks_only.push_back(static_cast<int>(rank));
  }
  Unwrap(communicator.Use([&](core::Communicator& ranks) -> Result<void> {
    CAIRN_TRY_ASSIGN(options.tensor_communicator, communicator.TensorCommunicator(by_nccl));
    return core::GatherStateDict(state.state, core::StateTarget(whole.state), ranks, options);
  }));
}

// Copies rank 0's tensors `full`, which the other ranks describe, to the tensors and shards of
// `target`. Collective.
void BroadcastToShards(CommunicatorBinding& communicator, const Batch& full, Batch& target,
                       bool by_nccl, const Streams& streams) {
  core::CollectiveOptions options{.streams = ToStreams(streams)};
  Unwrap(communicator.Use([&](core::Communicator& ranks) -> Result<void> {
    CAIRN_TRY_ASSIGN(options.tensor_communicator, communicator.TensorCommunicator(by_nccl));
    return core::BroadcastStateDict(full.state, core::StateTarget(target.state), ranks, options);
  }));
}

// BroadcastToShards for tensors `full` that every rank has. Not collective.
void DistributeToShards(const Batch& full, Batch& target, uint32_t rank, const Streams& streams) {
  const auto device_streams = ToStreams(streams);
  Unwrap(OutsideGil([&] {
    return core::DistributeStateDict(full.state, core::StateTarget(target.state), rank,
                                     device_streams);
  }));
}

}  // namespace

void BindCollectives(nb::module_& m) {
  m.def("gather_shards", &GatherShards, nb::arg("communicator"), nb::arg("state"), nb::arg("whole"),
        nb::arg("ranks_only"), nb::arg("by_nccl"), nb::arg("streams"));
  m.def("broadcast_to_shards", &BroadcastToShards, nb::arg("communicator"), nb::arg("full"),
        nb::arg("target"), nb::arg("by_nccl"), nb::arg("streams"));
  m.def("distribute_to_shards", &DistributeToShards, nb::arg("full"), nb::arg("target"),
        nb::arg("rank"), nb::arg("streams"));
}

}  // namespace cairn::python
