#pragma once
/// Walking a user's nested state into a tree of nodes: the way of every save and load in place.

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "core/state_dict/state_dict.h"
#include "python/src/torch_access.h"

namespace cairn::python {

namespace nb = nanobind;

/// Levels of nesting; deeper states are taken for ones that contain themselves.
inline constexpr uint32_t kMaxDepth = 1000;

/// A state's nodes in preorder.
///
/// Ownership: keeps the objects of the state alive, whatever becomes of its containers. Threads:
/// any that holds the GIL, also to destroy it.
struct Walk {
  struct Place {
    nb::object value;
    nb::object key;       // in the parent; the position in lists and tuples; None for the root
    uint32_t parent = 0;  // the root's is itself
  };

  core::StateTree tree;       // a leaf is of kind kValue until its user has looked at it
  std::vector<Place> places;  // parallel to tree.nodes

  /// The keys that lead to a node, joined by dots.
  std::string Fqn(uint32_t node) const;
};

/// Raises Invalid for keys that no FQN can be made of, and for states nested too deep.
Walk WalkState(nb::handle state, const TorchAccess& torch);

}  // namespace cairn::python
