#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Names of keys in FQNs (docs/format/keys.md); state_dict.h has NameOf.
///
/// The name of a key is its text with "\" doubled. FQNs are names joined by ".". Where two leaves
/// of a state would have the same FQN, keys are escaped: "\." is a "." inside a key, and "\I",
/// "\B", "\N" or "\F" at the beginning marks the key of an int, bool, None or float. Threads: all
/// functions are pure, or safe on different trees.

#include <cstddef>
#include <string>
#include <string_view>

#include "core/state_dict/state_dict.h"

namespace cairn::core {

/// Returns a node with the key that has this name; it may contain "." without escapes.
/// kInvalidArgument: no key has this name.
Result<Node> ParseName(std::string_view name);
/// Returns the position of the first "." from `from` on that separates two keys; npos if there is
/// none.
size_t FindSeparator(std::string_view fqn, size_t from = 0);
/// Returns the texts of the keys of an FQN, joined by ".": it has no escapes.
std::string JoinedTexts(std::string_view fqn);

/// Returns whether the name of a key is not plain.
bool HasForms(const StateTree& tree);

/// Escapes keys so that all leaves have different FQNs: among the children of one container that
/// lead to leaves of the same FQN, all but the shortest, and of several with the same text, those
/// that are not strings. All other keys remain as they are, so most states are not changed.
/// Requires a tree without escaped keys, whose child counts add up. Cost: a walk over the nodes;
/// for the few states in which a key could begin as the name of a container next to it, all FQNs.
void EscapeEqualNames(StateTree& tree);

}  // namespace cairn::core
