#pragma once
/// `kv-dump STORE`: a summary of a store.

#include <string>

#include "kv/error.h"
#include "tools/dump/run.h"

namespace cairn::tools {

/// Prints the summary of a store. Returns the exit status.
Result<int> DumpOverview(const DumpRun& run, const std::string& store);

}  // namespace cairn::tools
