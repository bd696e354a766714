#pragma once
/// A nested state in the form that a save needs.

#include <nanobind/nanobind.h>

#include <functional>
#include <string>
#include <vector>

#include "core/state_dict/state_dict.h"
#include "python/src/torch_access.h"

namespace cairn::python {

namespace nb = nanobind;

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
