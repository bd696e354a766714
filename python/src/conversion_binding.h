#pragma once
/// Conversion of steps by rules, for the Python side.

#include <nanobind/nanobind.h>

#include <optional>

#include "core/convert/conversion.h"
#include "python/src/communicator_binding.h"
#include "python/src/errors.h"
#include "python/src/flatten.h"
#include "python/src/load_plan.h"
#include "python/src/step_contents.h"

namespace cairn::python {

namespace nb = nanobind;

/// Returns the contents after `rules` (JSON) and casts: `dtype`, the code of all floating-point
/// tensors, and `casts`, codes by new name. `patterns` select new names. Requires the complete
/// contents of a step. Raises Invalid.
StepContents Convert(const StepContents& contents, nb::str rules, std::optional<uint8_t> dtype,
                     nb::dict casts, nb::list patterns);

/// Returns a flattened state, whose tensors are in host memory and not sharded, after `rules`
/// (JSON) and the cast of all floating-point tensors to `dtype`. It borrows the memory that `batch`
/// borrows. Raises Invalid.
Batch ConvertBatch(const Batch& batch, nb::str rules, std::optional<uint8_t> dtype);

/// Executes the requests of a conversion, on one rank. Threads: without the GIL.
Result<core::LoadReport> LoadConverted(core::CheckpointStore& store,
                                       const core::Conversion& conversion, const Requests& requests,
                                       SignalWatch& watch, const DeviceTransfer& transfer);

}  // namespace cairn::python
