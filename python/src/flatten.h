#pragma once
/// A nested state in the form that a save needs.

#include <nanobind/nanobind.h>

#include <functional>
#include <span>
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
  std::vector<nb::object> keys;          // by node; empty if TakeAgain would return false
  bool is_held = true;                   // false: after TakeAgain
  bool is_outdated = false;              // Hold has failed
  std::vector<uint64_t> names;           // digests of the FQNs by leaf, from layout_digest
  std::vector<uint64_t> samples;         // of FQN and contents by leaf; 0: not compared

  /// For saves that read few of the tensors: takes another state if it has the same tree, and if
  /// each tensor has the same dtype, shape, strides and address. Otherwise returns false, and the
  /// batch must not be used. The batch then keeps the tensors, but their memory only after Hold.
  bool TakeAgain(nb::handle another);
  /// After TakeAgain: keeps the memory of the tensors that begin at `addresses`, for
  /// SaveOptions::hold_memory, which is called without the GIL. kUnavailable: another thread has
  /// given one of them other memory since, or FindMemory does not find it; flatten the state.
  Result<void> Hold(std::span<const std::byte* const> addresses);
  /// Releases the objects of the state, so that only TakeAgain may be called. Returns false if that
  /// would return false for every state.
  bool Release();

  /// Returns a check for SaveOptions::check_memory, which is called without the GIL.
  /// kInvalidArgument: `storage.resize_` has freed memory that `state` borrows. Borrows this object
  /// and `tree`, the tree of `state`.
  std::function<Result<void>()> MemoryCheck(const core::StateTree& tree) const;
};

}  // namespace cairn::python
