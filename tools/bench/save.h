#pragma once
/// kv-bench save and incremental: durable saves of a complete model.

#include "kv/error.h"
#include "tools/bench/options.h"
#include "tools/bench/report.h"

namespace cairn::tools {

/// Measures full saves into a new store.
Result<void> BenchSave(const BenchOptions& options, BenchReport& report);
/// Measures saves on top of an earlier step: nothing changed, and a share of the tensors changed.
Result<void> BenchIncremental(const BenchOptions& options, BenchReport& report);

}  // namespace cairn::tools
