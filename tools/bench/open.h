#pragma once
/// kv-bench open: how long a new process takes to open a large store and read its first
/// key, compared with RocksDB opening the table alone.

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

/// Runs in the process that BenchOpen starts: opens the table `path` with RocksDB alone, seeks its
/// first record and prints the time as a JSON object.
Result<void> BenchTableChild(const std::string& path, Output& out);

}  // namespace cairn::tools
