#pragma once
/// Compares a state with the one of an earlier save, so that plans can be used again.

#include "core/state_dict/state_dict.h"

namespace cairn::core::internal {

/// True if both states have the same tree, and the same tensors in the same memory. False for
/// states with shardings.
bool HasSameTensors(const StateDict& a, const StateDict& b);

/// True if both states have the same values, bit by bit. Requires HasSameTensors.
bool HasSameValues(const StateDict& a, const StateDict& b);

}  // namespace cairn::core::internal
