#pragma once
/// kv-bench gpu: saves from a device and loads to it.

#include "kv/error.h"
#include "tools/bench/gpu_bench.h"

namespace cairn::tools {

/// Measures durable saves from the device and cold loads to it, compared with fio.
Result<void> BenchGpuDisk(GpuBench& bench);
/// Measures saves after no page and after 1 % of the pages changed, and the bytes that cross the
/// bus.
Result<void> BenchGpuPages(GpuBench& bench);

}  // namespace cairn::tools
