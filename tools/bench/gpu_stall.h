#pragma once
/// kv-bench gpu: the time that asynchronous saves cost a training.

#include "kv/error.h"
#include "tools/bench/gpu_bench.h"

namespace cairn::tools {

/// Measures by how much AsyncSaver::Save lengthens the steps of a training.
Result<void> BenchGpuStall(GpuBench& bench);

}  // namespace cairn::tools
