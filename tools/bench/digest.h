#pragma once
/// kv-bench digest: the page-tree digest compared with reading and copying the same memory.

#include "kv/error.h"
#include "tools/bench/options.h"
#include "tools/bench/report.h"

namespace cairn::tools {

Result<void> BenchDigest(const BenchOptions& options, BenchReport& report);

}  // namespace cairn::tools
