#pragma once
/// A nested state as one batch: what a save takes.

#include <nanobind/nanobind.h>

#include <vector>

#include "core/state_dict/state_dict.h"
#include "python/src/torch_access.h"

namespace cairn::python {

namespace nb = nanobind;

/// Threads: any that holds the GIL, also to destroy it; `state` may be read without.
struct Batch {
  core::StateDict state;
  std::vector<nb::object> owners;  // of the memory that `state` borrows

  /// How the tensors lie on ranks: (meshes, tensors). A mesh is (sizes, ranks); a tensor
  /// (FQN, form, global shape, placements), sorted by FQN. Its form is the index of its mesh, -1
  /// for a whole tensor and -2 for explicit boxes.
  nb::tuple Layout() const;
  /// Says anew how a tensor lies: `sharding` as ToSharding takes it. Raises Invalid if there is no
  /// such tensor.
  void SetSharding(nb::str fqn, nb::handle sharding);
  /// The devices that hold some of the state, ascending; none if all is in host memory.
  std::vector<int> Devices() const;
  /// The owners of what is in device memory, for those who outlive this batch.
  nb::list DeviceOwners() const;
};

/// `take(value, fqn)` is asked about leaves that are neither plain values nor plain torch tensors
/// within `reach`: it returns (node kind, dtype code, shape, strides in elements, address, device,
/// owner, sharding), the last None or as ToSharding takes it; or what FromPyValue takes. Leaves
/// that `patterns` (a list of str) do not take are left out. Raises Invalid, and what `take`
/// raises.
Batch Flatten(nb::handle state, nb::handle take, nb::list patterns, TorchAccess::Reach reach);

}  // namespace cairn::python
