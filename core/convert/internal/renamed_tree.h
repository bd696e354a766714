#pragma once
/// The tree of a state whose keys were renamed.

#include <span>

#include "core/convert/converted_key.h"
#include "core/state_dict/state_dict.h"

namespace cairn::core::internal {

/// Returns the tree of `keys`, which were made of the leaves of `tree`; ConvertedKey::source is the
/// index of a leaf, in tree order.
///
/// A key with an unchanged name stays where it is. A key with a new name stays below the containers
/// of its source whose keys begin the new name. What remains of the name is one key, if that of the
/// source contains a "." (as in a module's state_dict), otherwise a key per path element. A list
/// that does not have all of its elements in order becomes a dict by index. kInvalidArgument: a key
/// would be both a leaf and a container.
Result<StateTree> RenamedTree(const StateTree& tree, std::span<const ConvertedKey> keys);

}  // namespace cairn::core::internal
