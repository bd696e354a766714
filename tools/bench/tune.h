#pragma once
/// kv-bench tune: searches for the I/O settings that suit a disk.

#include "kv/error.h"
#include "tools/bench/options.h"
#include "tools/common/terminal.h"

namespace cairn::tools {

/// Prints the settings that were tried as a table, or as one JSON object per line.
Result<void> BenchTune(const BenchOptions& options, bool json, Output& out);

}  // namespace cairn::tools
