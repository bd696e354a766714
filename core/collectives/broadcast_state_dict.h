#pragma once
/// A whole state dict on rank 0 to shards on all ranks; see core/collectives/state_dict_collectives.h.

#include <cstdint>
#include <vector>

#include "core/collectives/broadcast_options.h"
#include "core/device/device.h"
#include "core/ranks/communicator.h"
#include "core/state_dict/host_state.h"
#include "core/state_dict/state_dict.h"
#include "core/state_dict/state_target.h"

namespace cairn::core {

/// Rank 0's `full` state (whole tensors and values; other ranks' is not looked at) into the shards
/// that each rank's `target` says. The result has the target's structure. Its tensors are written
/// where the target has memory, and it borrows them; where the target's view is null it owns them.
/// Leaves that are not sharded become whole tensors or plain values as they are in `full`; keys
/// that the target lacks are passed over.
///
/// kInvalidArgument on all ranks, beside what the top of this file says: dtypes or global shapes
/// differ, a value for a sharded tensor, a sharded `full`, too small a buffer.
/// kResourceExhausted: a rank has no memory for the result.
/// Cost: rank 0 sends each rank the bytes of its shards; a tensor that all ranks hold whole goes by
/// one Broadcast.
Result<HostState> BroadcastStateDict(const StateDict& full, const StateTarget& target,
                                     Communicator& communicator,
                                     const BroadcastOptions& options = {});

}  // namespace cairn::core
