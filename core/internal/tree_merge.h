#pragma once
/// One tree out of those of many ranks, each of which may hold a part of the state.

#include "core/state_dict.h"

namespace cairn::core::internal {

/// Adds to `tree` what `other` has besides: containers of the same path become one, with the
/// children of `tree` first. A list of which the ranks together do not hold all elements from 0 on
/// becomes a dict by index. kInvalidArgument names a path that is a container in one and a leaf in
/// the other, a tensor here and a value there, or containers of different kinds. kDataLoss: child
/// counts do not add up.
Result<StateTree> MergeTrees(const StateTree& tree, const StateTree& other);

}  // namespace cairn::core::internal
