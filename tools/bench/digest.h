#pragma once
/// kv-bench digest: the page-tree digest compared with reading and copying the same memory.

#include <cstddef>
#include <cstdint>
#include <span>

#include "kv/error.h"
#include "tools/bench/options.h"
#include "tools/bench/report.h"

namespace cairn::tools {

Result<void> BenchDigest(const BenchOptions& options, BenchReport& report);

/// Measures how fast two threads sum the 64-bit words of the memory.
BenchRow MeasureSum(std::span<const std::byte> memory, uint64_t run);

}  // namespace cairn::tools
