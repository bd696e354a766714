#pragma once
/// kv-bench gpu: copies, digests, saves and loads of a GPU.
///
/// Implemented in gpu.cc, or in gpu_without_cuda.cc in builds without the CUDA layer.

#include "kv/error.h"
#include "tools/bench/options.h"
#include "tools/bench/report.h"

namespace cairn::tools {

/// Measures a GPU. kFailedPrecondition: this machine has no GPU. kUnimplemented: this build has no
/// CUDA layer.
Result<void> BenchGpu(const BenchOptions& options, BenchReport& report);

}  // namespace cairn::tools
