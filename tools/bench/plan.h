#pragma once
/// kv-bench plan: the save plan of one rank of a large job.

#include "kv/error.h"
#include "tools/bench/options.h"
#include "tools/bench/report.h"

namespace cairn::tools {

/// Measures the planning of one rank's share of a large model.
Result<void> BenchPlan(const BenchOptions& options, BenchReport& report);

}  // namespace cairn::tools
