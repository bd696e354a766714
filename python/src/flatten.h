#pragma once
/// A nested state as one batch: what a save takes.

#include <nanobind/nanobind.h>

#include <vector>

#include "core/state_dict.h"

namespace cairn::python {

namespace nb = nanobind;

/// Threads: any that holds the GIL, also to destroy it; `state` may be read without.
struct Batch {
  core::StateDict state;
  std::vector<nb::object> owners;  // of the memory that `state` borrows
};

/// `take(value, fqn)` is asked about leaves that are neither plain values nor plain torch tensors
/// in host memory: it returns (node kind, dtype code, shape, strides in elements, address, owner),
/// or what FromPyValue takes. Raises Invalid, and what `take` raises.
Batch Flatten(nb::handle state, nb::handle take);

}  // namespace cairn::python
