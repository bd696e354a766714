#pragma once
/// The order in which the tensors of a step are streamed.

#include <nanobind/nanobind.h>

#include "python/src/step_contents.h"
#include "python/src/store_binding.h"

namespace cairn::python {

/// Returns the numbers of the leaves of `contents` that are tensors, in the order of their bytes in
/// the segments (core/upkeep/file_order.h). Raises Invalid if the store is closed.
nb::list ToPyFileOrder(const StoreBinding& store, const StepContents& contents);

}  // namespace cairn::python
