#pragma once
/// Exports of converted steps as safetensors files or directories of models.

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

#include "python/src/step_contents.h"
#include "python/src/store_binding.h"

namespace cairn::python {

namespace nb = nanobind;

/// Writes the tensors of `contents`, which `load` fills: it receives Requests. Returns (files,
/// tensors, bytes, tensors left out, values left out, seconds). Raises what `load` raises, and the
/// errors of core::ExportSafetensors or, if `is_model`, of core::ExportModelDirectory.
nb::tuple ExportConverted(const StoreBinding& store, const StepContents& contents,
                          const std::string& target, nb::callable load, bool is_model,
                          uint64_t max_shard_bytes, bool overwrite);

}  // namespace cairn::python
