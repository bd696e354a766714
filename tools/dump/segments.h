#pragma once
/// `kv-dump segments`: one row per segment file.

#include <string>

#include "kv/error.h"
#include "tools/dump/run.h"

namespace cairn::tools {

/// Prints the segments of a store and how much of each is in use. Returns the exit status.
Result<int> DumpSegments(const DumpRun& run, const std::string& store);

}  // namespace cairn::tools
