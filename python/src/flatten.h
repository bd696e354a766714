#pragma once
/// Conversion of a nested state to the form that a save needs.

#include <nanobind/nanobind.h>

#include <functional>
#include <string>
#include <vector>

#include "core/state_dict/state_dict.h"
#include "python/src/convert.h"
#include "python/src/torch_access.h"

namespace cairn::python {

namespace nb = nanobind;

/// A flattened state. Threads: any that holds the GIL, which the destructor requires too; `state`
/// may be read without the GIL.
struct Batch {
  core::StateDict state;
  std::vector<nb::object> owners;        // owners of the memory of each tensor of `state`
  std::vector<BorrowedTensor> borrowed;  // the torch tensors among these
  std::vector<uint64_t> names;           // digests of the FQNs by leaf, from LayoutDigest
  std::vector<uint64_t> samples;         // of FQN and contents by leaf; 0: not compared

  /// Returns a check for SaveOptions::check_memory, which is called without the GIL.
  /// kInvalidArgument: `storage.resize_` has freed memory that `state` borrows. Borrows this object
  /// and `tree`, the tree of `state`.
  std::function<Result<void>()> MemoryCheck(const core::StateTree& tree) const;

  /// Returns how the leaves are distributed over ranks, as (meshes, leaves). A mesh is (sizes,
  /// ranks). A leaf is (FQN, form, global shape, placements), in tree order. The form is the index
  /// of its mesh, -1 for a complete tensor, and -2 for explicit boxes. With `values`, the leaves
  /// include plain values, of the form -3.
  nb::tuple Layout(bool values) const;
  /// Returns a digest of what Layout returns, in hexadecimal digits.
  std::string LayoutDigest();
  /// Sets `samples`, of values and of tensors if they are wanted. Up to 64 elements are digested
  /// completely, otherwise runs of 16 elements, in row-major order: one per 8,192 elements, at
  /// least one and at most 64, which `shift` moves. Of tensors of less than 8,192 elements, `shift`
  /// selects an eighth. If `complete`, up to 1,024 elements are digested completely, and 64 runs of
  /// all others. Device memory is read after the work of `streams`.
  void TakeSamples(uint64_t shift, bool complete, bool values, bool tensors,
                   const Streams& streams);
  /// Returns, for each group of leaves, the sum of the samples of its values and that of its
  /// tensors. `groups` has the number of the group of each leaf in 32 bits; leaves with a higher
  /// number than `group_count` are ignored. Empty: all leaves are in group 0.
  nb::list SampleSums(nb::bytes groups, size_t group_count) const;
  /// Returns, in tree order, (FQN, whether it is a tensor, whether it is always digested
  /// completely, sample).
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
