#pragma once
/// `kv-dump diff`: the keys and bytes that differ between two steps.

#include <string>
#include <vector>

#include "kv/error.h"
#include "tools/dump/run.h"

namespace cairn::tools {

/// Prints the differences; with `values` it also compares the elements of changed tensors.
/// `address_b` may be "@STEP", a step of the same store. Returns the exit status, which is
/// kExitDiffers if anything differs.
Result<int> DumpDiff(const DumpRun& run, const std::string& address_a, const std::string& address_b,
                     const std::vector<std::string>& patterns, bool values);

}  // namespace cairn::tools
