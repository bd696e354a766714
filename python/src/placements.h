#pragma once
/// Meshes and placements from plain Python numbers.

#include <nanobind/nanobind.h>

#include <cstdint>

namespace cairn::python {

namespace nb = nanobind;

/// What `rank` holds of a tensor of `shape` on a mesh of these sizes: (sizes, offsets, pieces),
/// each piece (offsets, sizes, local offsets). A placement is (kind, dimension, split factor),
/// kinds as in core::Placement. Raises Invalid for what does not fit together. Needs the GIL.
nb::tuple ShardOf(nb::handle shape, nb::handle mesh_sizes, nb::handle placements, uint32_t rank);

}  // namespace cairn::python
