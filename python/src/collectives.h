#pragma once
/// State dicts that pass between shards on each rank and whole tensors, for cairn/state_dict/.
///
/// Errors are those of core/collectives/state_dict_collectives.h. What is returned is a list of (FQN, dtype
/// code, shape, bytes), bytes a torch tensor of uint8 over memory that it keeps alive; None for
/// tensors without elements. Memory of one call is one region, freed with the last tensor in it.

#include <nanobind/nanobind.h>

#include <vector>

#include "python/src/communicator_binding.h"
#include "python/src/flatten.h"

namespace cairn::python {

namespace nb = nanobind;

/// Every sharded tensor of `state`, whole, on the ranks of `ranks_only` (all if there are none).
/// Those of `targets`, (FQN, dtype code, shape, strides, address, device) each, go there and are
/// not returned; all others go to host memory. Collective.
nb::list GatherShards(CommunicatorBinding& communicator, const Batch& state, nb::handle ranks_only,
                      nb::list targets, const DeviceWay& way);

/// Rank 0's `full` tensors into what `target` says: shards are filled in their memory, or, where
/// they have none, returned, as are whole tensors for leaves that are plain values. Collective.
nb::list BroadcastToShards(CommunicatorBinding& communicator, const Batch& full, Batch& target,
                           const DeviceWay& way);

/// The same from tensors that every rank has; not collective.
nb::list DistributeToShards(const Batch& full, Batch& target, uint32_t rank,
                            std::vector<core::DeviceStream> streams);

}  // namespace cairn::python
