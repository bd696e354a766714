#pragma once
/// Retention policies in Python: (keep_last, keep_every, ["metric:N", ...]).

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kv/base/retention.h"

namespace cairn::python {

/// Raises Invalid. Requires the GIL.
kv::RetentionPolicy ToPolicy(uint64_t keep_last, uint64_t keep_every,
                             const std::vector<std::string>& keep_best);
/// Requires the GIL.
nanobind::tuple ToPyPolicy(const kv::RetentionPolicy& policy);

}  // namespace cairn::python
