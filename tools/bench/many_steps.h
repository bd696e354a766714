#pragma once
/// kv-bench steps: what a commit costs in a store of many steps.

#include "kv/error.h"
#include "tools/bench/options.h"
#include "tools/bench/report.h"

namespace cairn::tools {

/// Measures commits of small steps in a store of `options.steps` steps, each next to one in a new
/// store.
Result<void> BenchSteps(const BenchOptions& options, BenchReport& report);

}  // namespace cairn::tools
