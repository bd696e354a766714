#pragma once
/// The devices whose memory contains a state.

#include <set>

#include "core/state_dict/state_dict.h"

namespace cairn::core::internal {

/// Adds to `devices` those, except the host, whose memory contains tensors of `state`.
void AddDevices(const StateDict& state, std::set<int>& devices);

}  // namespace cairn::core::internal
