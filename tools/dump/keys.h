#pragma once
/// `kv-dump keys`: one row per key.

#include <string>
#include <vector>

#include "kv/error.h"
#include "tools/dump/run.h"

namespace cairn::tools {

struct KeysOptions {
  bool statistics = false;  // show them
  std::string where;        // a StatisticsFilter; empty: all keys. Implies `statistics`
};

/// Prints the tensors and plain values of a step that match the patterns (all if there are none)
/// and the condition. Returns the exit status.
Result<int> DumpKeys(const DumpRun& run, const std::string& address,
                     const std::vector<std::string>& patterns, const KeysOptions& options);

}  // namespace cairn::tools
