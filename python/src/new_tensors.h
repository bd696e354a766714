#pragma once
/// New torch tensors to read into.

#include <nanobind/nanobind.h>

#include "python/src/load_plan.h"
#include "python/src/step_contents.h"
#include "python/src/store_binding.h"

namespace cairn::python {

namespace nb = nanobind;

/// Tensors of at least this size have separate memory; smaller ones share arenas.
inline constexpr uint64_t kOwnMemoryBytes = uint64_t{1} << 20;
/// Limit of an arena. It is freed with its last tensor, so this is the most that one small tensor
/// can keep allocated.
inline constexpr uint64_t kArenaBytes = uint64_t{32} << 20;

/// Returns, by leaf, a new tensor for each leaf that is a torch tensor without shared memory, and
/// None for all other leaves, which the Python side creates. Adds the reads into the tensors to
/// `requests`.
///
/// Small tensors are in arenas in key order, as they are in segments, so that adjacent reads have
/// adjacent targets. The storage of each tensor has the size of the tensor. Raises Invalid if torch
/// is missing.
nb::list RequestNewTensors(const StepContents& contents, Requests& requests);

/// RequestNewTensors for `device`, which C++ must be able to access: the tensors are allocated by
/// PyTorch.
nb::list RequestNewDeviceTensors(const StepContents& contents, Requests& requests,
                                 nb::handle device);

/// Returns a list and the MapCheck of its tensors, or None. The list has, by leaf, a mapped tensor
/// for each leaf that is a torch tensor without shared memory and can be mapped, and None for all
/// other leaves, which the Python side creates.
nb::tuple MapNewTensors(const StoreBinding& store, const StepContents& contents);

/// Checks mapped tensors, without the GIL. Raises Corrupt if bytes do not match their digests.
void RunMapCheck(const core::MapCheck& check);

/// Returns a new row-major tensor with separate memory; or None if the caller should use
/// torch.empty: for small tensors, and for dtypes and versions of torch that TorchAccess cannot
/// wrap.
nb::object NewLargeTensor(uint8_t dtype, nb::handle shape);

/// Returns a new row-major tensor of zeros in separate page-locked memory; None for dtypes and
/// versions of torch that TorchAccess cannot wrap. Requires a shape with elements. Raises
/// Unavailable if no more memory can be page-locked, and Invalid if no device backend is available.
nb::object NewPinnedTensor(uint8_t dtype, nb::handle shape);

}  // namespace cairn::python
