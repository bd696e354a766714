#pragma once
/// kv-bench diff: how long `kv-dump diff` takes for two steps of many chunks.

#include "kv/error.h"
#include "tools/bench/options.h"
#include "tools/bench/report.h"

namespace cairn::tools {

/// Runs kv-dump, which must be next to this program, on a store of two steps that share all but one
/// tensor in a hundred.
Result<void> BenchDiff(const BenchOptions& options, BenchReport& report);

}  // namespace cairn::tools
