#pragma once
/// Whole state dicts on all ranks to shards; see core/collectives/state_dict_collectives.h.

#include <cstdint>

#include "core/collectives/broadcast_options.h"
#include "core/state_dict/host_state.h"
#include "core/state_dict/state_dict.h"
#include "core/state_dict/state_target.h"

namespace cairn::core {

/// The same where every rank has the full state: `rank`'s shards are cut from it, nothing is sent.
/// Memory of `full` and `target` does not overlap.
Result<HostState> DistributeStateDict(const StateDict& full, const StateTarget& target,
                                      uint32_t rank, const BroadcastOptions& options = {});

}  // namespace cairn::core
