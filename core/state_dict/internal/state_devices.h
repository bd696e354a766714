#pragma once
/// The devices that hold a state.

#include <set>

#include "core/state_dict/state_dict.h"

namespace cairn::core::internal {

/// Adds the devices that a state's tensors lie on.
void AddDevices(const StateDict& state, std::set<int>& devices);

}  // namespace cairn::core::internal
