#pragma once
/// kv-bench gpu: copies over the bus, and digests.

#include "kv/error.h"
#include "tools/bench/gpu_bench.h"

namespace cairn::tools {

/// Measures the copies of a device queue compared with cudaMemcpyAsync, for large tensors and for
/// 20,000 small ones, in both directions.
Result<void> BenchGpuCopies(GpuBench& bench);
/// Measures the digest kernel compared with a kernel that only reads.
Result<void> BenchGpuDigest(GpuBench& bench);

}  // namespace cairn::tools
