#pragma once
/// Meshes, placements and shardings from tuples of Python numbers. All functions require the GIL.

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>

#include "core/tensor/sharding.h"

namespace cairn::python {

namespace nb = nanobind;

/// A mesh for the Python side: created once, shared by the tensors on it.
struct Mesh {
  std::shared_ptr<const core::DeviceMesh> mesh;

  /// Creates a mesh. `ranks`: the rank at each position, row-major. Raises Invalid if the sizes and
  /// ranks do not form a mesh.
  static Mesh Make(nb::handle sizes, nb::handle ranks);
};

/// Converts (global shape, Mesh, placements) or, for explicit boxes, (global shape, None, parts),
/// where each part is (offsets, sizes, strides in elements, address, device), with elements of
/// `dtype`. Raises Invalid for a malformed placement.
core::Sharding ToSharding(nb::handle sharding, core::DType dtype);

}  // namespace cairn::python
