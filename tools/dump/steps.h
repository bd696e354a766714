#pragma once
/// `kv-dump steps`: one row per step.

#include <string>

#include "kv/error.h"
#include "tools/dump/run.h"

namespace cairn::tools {

/// Prints the steps of a store. Returns the exit status.
Result<int> DumpSteps(const DumpRun& run, const std::string& store, const std::string& where);

}  // namespace cairn::tools
