#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Copies shards from a full state dict that every rank has; see
/// core/collectives/state_dict_collectives.h.

#include <cstdint>

#include "core/collectives/broadcast_options.h"
#include "core/state_dict/host_state.h"
#include "core/state_dict/state_dict.h"
#include "core/state_dict/state_target.h"

namespace cairn::core {

/// Returns what BroadcastStateDict returns on `rank`, for ranks that all have the `full` state:
/// copies the shards of `rank` from it, and sends nothing. Requires that the memory of `full` and
/// `target` does not overlap. kInvalidArgument, kResourceExhausted: as for BroadcastStateDict, on
/// this rank only.
Result<HostState> DistributeStateDict(const StateDict& full, const StateTarget& target,
                                      uint32_t rank, const BroadcastOptions& options = {});

}  // namespace cairn::core
