#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Broadcasts a full state dict of rank 0 to shards on all ranks; see
/// core/collectives/state_dict_collectives.h.

#include <cstdint>
#include <vector>

#include "core/collectives/broadcast_options.h"
#include "core/device/device.h"
#include "core/ranks/communicator.h"
#include "core/state_dict/host_state.h"
#include "core/state_dict/state_dict.h"

namespace cairn::core {

// Copies shards from a full state dict that every rank has; see
// core/collectives/state_dict_collectives.h.

/// Returns what BroadcastStateDict returns on `rank`, for ranks that all have the `full` state:
/// copies the shards of `rank` from it, and sends nothing. Requires that the memory of `full` and
/// `target` does not overlap. kInvalidArgument, kResourceExhausted: as for BroadcastStateDict, on
/// this rank only.
Result<HostState> DistributeStateDict(const StateDict& full, const StateTarget& target,
                                      uint32_t rank, const BroadcastOptions& options = {});

/// Copies the `full` state of rank 0, whose tensors are not sharded, to the shards that the
/// `target` of each rank describes; `full` is ignored on other ranks. The result has the structure
/// of the target. If a tensor of the target has memory, this memory is written, and the result
/// borrows it; otherwise the result owns the tensor. Leaves that are not sharded become complete
/// tensors or values, as in `full`. Keys that the target lacks are ignored. Collective.
///
/// kInvalidArgument on all ranks: dtypes or global shapes differ, `full` has a value for a sharded
/// tensor or is sharded itself, the buffer is too small, or another error that
/// core/collectives/state_dict_collectives.h describes.
/// kResourceExhausted: a rank has not enough memory for the result.
/// Cost: rank 0 sends each rank the bytes of its shards; it sends a tensor that all ranks hold
/// completely with one Broadcast.
Result<HostState> BroadcastStateDict(const StateDict& full, const StateTarget& target,
                                     Communicator& communicator,
                                     const BroadcastOptions& options = {});

}  // namespace cairn::core
