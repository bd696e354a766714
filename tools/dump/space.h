#pragma once
/// `kv-dump space`: where the bytes of a step are.

#include <cstdint>
#include <string>
#include <vector>

#include "kv/error.h"
#include "tools/dump/run.h"

namespace cairn::tools {

/// Prints what each segment contains: bytes that steps use, that several steps use, and that none
/// uses. Returns the exit status.
Result<int> DumpSegmentSpace(const DumpRun& run, const std::string& store);

/// Returns the exit status.
Result<int> DumpSpace(const DumpRun& run, const std::string& address,
                      const std::vector<std::string>& patterns, uint64_t depth);

}  // namespace cairn::tools
