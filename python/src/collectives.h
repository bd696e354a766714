#pragma once
/// Conversion of state dicts between shards and complete tensors, for cairn/state_dict/.
///
/// Functions raise the errors of core/collectives/state_dict_collectives.h. They return a list of
/// (FQN, dtype code, shape, bytes), where the bytes are a torch tensor of uint8 over memory that it
/// keeps alive, or None for tensors without elements. The memory of one call is one region, which
/// is freed with the last tensor in it. All require the GIL.

#include <nanobind/nanobind.h>

#include <vector>

#include "python/src/communicator_binding.h"
#include "python/src/flatten.h"

namespace cairn::python {

namespace nb = nanobind;

/// Returns every sharded tensor of `state` as a complete tensor, on the ranks of `ranks_only` (on
/// all ranks if it is empty). Tensors of `targets`, tuples (FQN, dtype code, shape, strides,
/// address, device), are written to that memory and not returned; all others are in host memory.
/// Collective.
nb::list GatherShards(CommunicatorBinding& communicator, const Batch& state, nb::handle ranks_only,
                      nb::list targets, const DeviceTransfer& transfer);

/// Distributes rank 0's tensors `full` to `target`: shards are written to their memory. Shards
/// without memory, and complete tensors for leaves of `target` that are plain values, are returned.
/// Collective.
nb::list BroadcastToShards(CommunicatorBinding& communicator, const Batch& full, Batch& target,
                           const DeviceTransfer& transfer);

/// Distributes the tensors `full`, which every rank has, to `target`: shards are written to their
/// memory. Shards without memory, and complete tensors for leaves of `target` that are plain
/// values, are returned. Not collective.
nb::list DistributeToShards(const Batch& full, Batch& target, uint32_t rank,
                            std::vector<core::DeviceStream> streams);

}  // namespace cairn::python
