#pragma once
/// Conversion of a nested state to the form that a save needs.

#include <nanobind/nanobind.h>

#include <functional>
#include <utility>
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
  std::vector<uint64_t> samples;         // by leaf, from TakeSamples

  /// Returns a check for SaveOptions::check_memory, which is called without the GIL.
  /// kInvalidArgument: `storage.resize_` has freed memory that `state` borrows. Borrows this object
  /// and `tree`, the tree of `state`.
  std::function<Result<void>()> MemoryCheck(const core::StateTree& tree) const;

  /// Returns how the tensors are distributed over ranks, as (meshes, tensors). A mesh is (sizes,
  /// ranks). A tensor is (FQN, form, global shape, placements); tensors are sorted by FQN. The form
  /// is the index of its mesh, -1 for a complete tensor, and -2 for explicit boxes.
  nb::tuple Layout() const;
  /// Sets `samples`, what should be equal on the ranks that have the same key: digests of complete
  /// tensors and plain values. Returns the digest of those of the values and that of those of the
  /// tensors. The digest of a tensor of more than 1,024
  /// elements is that of 64 runs of 16 elements, in row-major order; `shift` moves them.
  /// `on_device(owner, runs)` returns the bytes of these elements of a tensor in device memory.
  std::pair<uint64_t, uint64_t> TakeSamples(uint64_t shift, nb::handle on_device);
  /// Returns the samples as (FQN, whether it is a tensor, digest).
  nb::list Samples() const;
  /// Returns (FQN, bytes, address on this rank) of each leaf. The bytes are those of the complete
  /// tensor, or of a long value; other values have none, and no value has an address.
  nb::list Sizes() const;
  /// Returns (FQN, kind, bytes) of each long value.
  nb::list LongValues() const;
  /// Leaves the bytes of these long values, a list of FQNs, to rank 0, which has equally long ones
  /// of the same kind. Requires a rank above 0.
  void LeaveToFirst(nb::list fqns);
  /// Makes the keys of the top-level dict the beginnings of FQNs as they are, for callers that have
  /// joined keys themselves.
  void TakeKeysAsFqns();
  /// Replaces the sharding of a tensor. `sharding` has the form that ToSharding accepts. Raises
  /// Invalid if there is no such tensor.
  void SetSharding(nb::str fqn, nb::handle sharding);
  /// Returns the devices that contain parts of the state, in ascending order; empty if all is in
  /// host memory.
  std::vector<int> Devices() const;
  /// Returns the owners of tensors in device memory, for callers that use it after the batch is
  /// destroyed.
  nb::list DeviceOwners() const;
};

/// Flattens a state. Leaves that `patterns` (a list of str) do not match are left out. For leaves
/// that are neither plain values nor torch tensors that TorchAccess finds within `reach`, calls
/// `take(value, fqn)`. It returns either (node kind, dtype code, shape, strides in elements,
/// address, device, owner, sharding), where the sharding is None or has the form that ToSharding
/// accepts, or an object that FromPyValue accepts. Raises Invalid, and what `take` raises.
/// `key_of`: see WalkState.
Batch Flatten(nb::handle state, nb::handle take, nb::list patterns, TorchAccess::Reach reach,
              nb::object key_of = {});

}  // namespace cairn::python
