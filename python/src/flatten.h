#pragma once
/// A nested state in the form that a save needs.

#include <nanobind/nanobind.h>

#include <functional>
#include <string>
#include <vector>

#include "core/state_dict/state_dict.h"
#include "python/src/errors.h"
#include "python/src/torch_access.h"

namespace cairn::python {

namespace nb = nanobind;

/// Calls `visit(FQN, whether it is a tensor, slot)` for each leaf, in tree order.
template <typename Visit>
void ForEachLeaf(const core::StateDict& state, const Visit& visit) {
  const std::vector<core::Leaf> leaves = Unwrap(core::FlattenTree(state.tree));
  for (size_t i = 0; i < leaves.size(); ++i) {
    visit(leaves[i].fqn, core::IsTensor(state.tree.nodes[leaves[i].node].kind), state.slot[i]);
  }
}

/// A flattened state. Threads: any that holds the GIL, which the destructor requires too; `state`
/// may be read without the GIL.
struct Batch {
  core::StateDict state;
  std::vector<nb::object> owners;        // owners of the memory of each tensor of `state`
  std::vector<BorrowedTensor> borrowed;  // the torch tensors among these
  std::vector<uint64_t> names;           // digests of the FQNs by leaf, from layout_digest
  std::vector<uint64_t> samples;         // of FQN and contents by leaf; 0: not compared

  /// Returns a check for SaveOptions::check_memory, which is called without the GIL.
  /// kInvalidArgument: `storage.resize_` has freed memory that `state` borrows. Borrows this object
  /// and `tree`, the tree of `state`.
  std::function<Result<void>()> MemoryCheck(const core::StateTree& tree) const;
};

}  // namespace cairn::python
