#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Transforms state dicts by the FQNs of their leaves: flattens and filters them, and strips
/// prefixes.
///
/// The returned states borrow the same tensors as their arguments. Threads: all functions are safe.

#include <string_view>

#include "core/state_dict/key_pattern.h"
#include "core/state_dict/state_dict.h"

namespace cairn::core {

/// A flat dict from FQNs to leaves, and the tree that restores the nested state.
struct FlatState {
  StateDict flat;  // one dict, in tree order
  StateTree tree;  // tree of the nested state
};
/// Returns the flat form of a state. Indices of lists are elements of the FQN, as keys are. Returns
/// the errors of StateDict::Leaves.
Result<FlatState> FlattenStateDict(const StateDict& state);

/// Returns the leaves of `flat` in the structure and order of `tree`, pruned by PruneTree to the
/// leaves that `flat` has. A leaf may have another kind than in `tree`. kInvalidArgument, naming
/// the FQN: `tree` does not have a leaf of `flat`, or StateDict::Leaves rejects `flat`.
Result<StateDict> UnflattenStateDict(const StateDict& flat, const StateTree& tree);

/// Returns the leaves whose FQN matches `patterns`, in the tree that PruneTree returns. Returns the
/// errors of StateDict::Leaves.
Result<StateDict> FilterStateDict(const StateDict& state, const KeyPatterns& patterns);

/// Returns the leaves whose FQN begins with `prefix`, without the prefix: "model." yields the state
/// below "model". A prefix may end inside a key; the rest of the key is then a string key. The root
/// is the container at the prefix if there is exactly one, otherwise a dict. kInvalidArgument,
/// naming the key: two containers would have the same key, or StateDict::Leaves rejects `state`.
Result<StateDict> StripPrefix(const StateDict& state, std::string_view prefix);

}  // namespace cairn::core
