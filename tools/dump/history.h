#pragma once
/// `kv-dump history`: the steps at which a key's bytes changed.

#include <string>

#include "kv/error.h"
#include "tools/dump/run.h"

namespace cairn::tools {

/// Returns the exit status.
Result<int> DumpHistory(const DumpRun& run, const std::string& store, const std::string& fqn);

}  // namespace cairn::tools
