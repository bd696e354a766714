#pragma once
/// The walk of a user's nested state that every save and load in place begins with. Tensor
/// subclasses that consist of inner tensors (`__tensor_flatten__`) are walked, saved and loaded as
/// the dicts that cairn/_tensors/subclasses.py describes.

#include <nanobind/nanobind.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/state_dict/state_dict.h"
#include "python/src/torch_access.h"

namespace cairn::python {

namespace nb = nanobind;

/// The key of the description in the dict of a tensor subclass. Frozen: part of stored steps.
inline constexpr std::string_view kSubclassKey = "__tensor_subclass__";

/// The nodes of a state in preorder.
///
/// Ownership: keeps the objects of the state alive, even if its containers are changed. Threads:
/// any that holds the GIL, which the destructor requires too.
struct Walk {
  struct PyNode {
    nb::object value;
    nb::object key;       // in the parent: the key or the position; None for the root
    uint32_t parent = 0;  // index in `py_nodes`; the parent of the root is the root
  };

  core::StateTree tree;  // the user of the walk sets the kinds of leaves; they are kValue before
  std::vector<PyNode> py_nodes;  // parallel to tree.nodes
  /// The tensor subclasses, by node. The values of their nodes are the dicts that replace them.
  std::vector<std::pair<uint32_t, nb::object>> subclasses;

  /// Returns the FQN of a node.
  std::string Fqn(uint32_t node) const;
};

/// Walks a state, in which tensor subclasses with inner tensors become dicts. Raises Invalid for
/// keys that cannot be part of an FQN or are reserved, for states that are nested more than
/// core::kMaxTreeLevels levels deep, and for tensor subclasses that cannot be described.
/// `key_of` takes the place of cairn._base.tree.key_of if it is not null.
Walk WalkState(nb::handle state, const TorchAccess& torch, nb::object key_of = {});

using LeafVisitor = std::function<bool(uint32_t node, nb::handle leaf)>;
/// Calls `visit` for each leaf of a state, in tree order, as long as it returns true and the state
/// has the tree of a walk, with `keys` by node. Returns true if this was so for all. Requires a
/// tree without tensor subclasses. Cheap if the keys are the same objects; returns false for other
/// keys than str and int that are not.
bool VisitIfSame(nb::handle state, const core::StateTree& tree, const std::vector<nb::object>& keys,
                 const TorchAccess& torch, const LeafVisitor& visit);

}  // namespace cairn::python
