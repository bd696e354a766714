#pragma once
/// kv-bench commit: what rank 0 of a large job does for a step.

#include "kv/error.h"
#include "tools/bench/options.h"
#include "tools/bench/report.h"

namespace cairn::tools {

/// Measures the commit of a step whose other ranks are simulated.
Result<void> BenchCommit(const BenchOptions& options, BenchReport& report);

}  // namespace cairn::tools
