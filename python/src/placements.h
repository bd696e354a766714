#pragma once
/// Meshes, placements and shardings from plain Python numbers.

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>

#include "core/sharding/sharding.h"

namespace cairn::python {

namespace nb = nanobind;

/// A mesh as Python holds it: made once, shared by the tensors on it.
struct Mesh {
  std::shared_ptr<const core::DeviceMesh> mesh;

  /// `ranks` names the rank of each place, row-major. Raises Invalid as DeviceMesh::Make.
  static Mesh Make(nb::handle sizes, nb::handle ranks);
};

/// What `rank` holds of a tensor of `shape` on a mesh of these sizes: (sizes, offsets, pieces),
/// each piece (offsets, sizes, local offsets). A placement is (kind, dimension, split factor),
/// kinds as in core::Placement. Raises Invalid for what does not fit together. Needs the GIL.
nb::tuple ShardOf(nb::handle shape, nb::handle mesh_sizes, nb::handle placements, uint32_t rank);

/// From (global shape, Mesh, placements), or for explicit boxes (global shape, None, parts), each
/// part (offsets, sizes, strides in elements, address, device) of elements of `dtype`.
core::Sharding ToSharding(nb::handle sharding, core::DType dtype);

}  // namespace cairn::python
