#pragma once
/// kv-bench open: how long a new process takes to open a large store and read its first key.

#include <string>

#include "kv/error.h"
#include "tools/bench/options.h"
#include "tools/bench/report.h"
#include "tools/common/terminal.h"

namespace cairn::tools {

Result<void> BenchOpen(const BenchOptions& options, BenchReport& report);

/// Runs in the process that BenchOpen starts: opens the store in `directory`, reads its first key
/// and prints the times as one JSON object.
Result<void> BenchOpenChild(const std::string& directory, Output& out);

}  // namespace cairn::tools
