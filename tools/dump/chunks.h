#pragma once
/// `kv-dump chunks`: one row per chunk.

#include <string>
#include <vector>

#include "kv/error.h"
#include "tools/dump/run.h"

namespace cairn::tools {

/// Prints the chunks of the tensors that match the patterns, with the place of their bytes. Returns
/// the exit status.
Result<int> DumpChunks(const DumpRun& run, const std::string& address,
                       const std::vector<std::string>& patterns);

}  // namespace cairn::tools
