#pragma once
/// Reports as tuples and lists, from which the Python side makes its own classes.

#include <nanobind/nanobind.h>

#include <vector>

#include "core/inspect/diff.h"
#include "core/upkeep/scrub.h"
#include "kv/base/copy_options.h"
#include "kv/base/error.h"

namespace cairn::python {

// All require the GIL.

/// Returns ([(kind, FQN, is a tensor, changed bytes, bytes, detail), ...], unchanged keys).
nanobind::tuple ToPyDiff(const core::Diff& diff);
/// Returns (key, text, file, offset) for each error.
nanobind::list ToPyErrors(const std::vector<Error>& errors);
/// Returns the members of the report by name.
nanobind::dict ToPyCompactReport(const kv::CompactReport& report);
/// Returns [(step, outcome, bytes, copied segments, copied bytes, reused segments), ...].
nanobind::list ToPyCopyReport(const kv::CopyReport& report);
/// Returns (passes, bytes read, number of problems, [(key, text, file, offset), ...], text of the
/// error of the last pass, whether a pass is running).
nanobind::tuple ToPyScrubState(const core::ScrubState& state);

}  // namespace cairn::python
