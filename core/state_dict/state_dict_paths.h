#pragma once
/// State dicts by the names of their leaves: flat ones, parts of them, and without a prefix.
///
/// The states returned borrow the same tensors as the ones given. Threads: all functions are pure.

#include <string_view>

#include "core/state_dict/key_pattern.h"
#include "core/state_dict/state_dict.h"

namespace cairn::core {

/// A dict from FQNs to leaves, and the way back.
struct FlatState {
  StateDict flat;  // one dict, in tree order
  StateTree tree;  // of the nested state: what the FQNs do not say
};
/// Indices of lists are elements of the FQN like keys. Errors as FlattenTree: two leaves with one
/// FQN are refused, naming it.
Result<FlatState> FlattenStateDict(const StateDict& state);

/// The leaves of `flat` where `tree` has them, in its order. Leaves of `tree` that `flat` lacks are
/// left out, as PruneTree does. A leaf may have become another kind of leaf since.
/// kInvalidArgument: `tree` has no leaf of an FQN of `flat`; names it.
Result<StateDict> UnflattenStateDict(const StateDict& flat, const StateTree& tree);

/// The leaves whose FQN `patterns` take, as PruneTree leaves them. Errors as FlattenTree.
Result<StateDict> FilterStateDict(const StateDict& state, const KeyPatterns& patterns);

/// The leaves whose FQN begins with `prefix`, with the rest of the FQN as their key path: with
/// "model." the state below "model". A prefix may end inside a key; what is left of the key is a
/// string then. The root is a dict, or what stood at the prefix if that is one container.
/// kInvalidArgument: two containers would get one key; names it; or as FlattenTree.
Result<StateDict> StripPrefix(const StateDict& state, std::string_view prefix);

}  // namespace cairn::core
