#pragma once
/// kv-bench load and partial: loads of a complete model and of one key in a hundred.

#include "kv/error.h"
#include "tools/bench/options.h"
#include "tools/bench/report.h"

namespace cairn::tools {

/// Measures loads of all tensors. kDataLoss: a loaded byte differs from what was saved.
Result<void> BenchLoad(const BenchOptions& options, BenchReport& report);
/// Measures cold loads of every hundredth key. kDataLoss: a loaded byte differs from what was
/// saved.
Result<void> BenchPartial(const BenchOptions& options, BenchReport& report);

}  // namespace cairn::tools
