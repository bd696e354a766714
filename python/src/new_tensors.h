#pragma once
/// New torch tensors to read into, and the plain leaves of a step as such tensors.

#include <nanobind/nanobind.h>

#include "python/src/load_plan.h"
#include "python/src/step_contents.h"

namespace cairn::python {

namespace nb = nanobind;

/// Tensors from this size on get memory of their own; smaller ones share arenas.
inline constexpr uint64_t kOwnMemoryBytes = uint64_t{1} << 20;
/// An arena is freed when its last tensor goes: this is what one small tensor can hold at most.
inline constexpr uint64_t kArenaBytes = uint64_t{32} << 20;

/// A new tensor for each leaf that is a torch tensor and shares no memory, by leaf; None for all
/// other leaves, for the Python side to make. What goes into the tensors is added to `requests`.
///
/// Small tensors lie in arenas in key order, as they do in segments, so that what is read together
/// lands together. Each tensor has a storage of its own size. Raises Invalid if torch is missing.
nb::list RequestNewTensors(const StepContents& contents, Requests& requests);

/// A new row-major tensor with memory of its own, or None where that is for torch.empty: small
/// tensors, and dtypes or versions of torch without a way to lend it memory.
nb::object NewLargeTensor(uint8_t dtype, nb::handle shape);

/// A new row-major tensor in page-locked memory of its own, of zeros; None for dtypes or versions
/// of torch without a way to lend it memory. Requires elements. Raises as
/// core::HostMemory::Allocate.
nb::object NewPinnedTensor(uint8_t dtype, nb::handle shape);

}  // namespace cairn::python
