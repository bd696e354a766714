// kv-bench gpu in builds with the CUDA layer: the GPU, and the parts to run on it.

#include <fmt/format.h>

#include "cuda/backend.h"
#include "tools/bench/gpu_bench.h"
#include "tools/bench/verbs.h"

namespace cairn::tools {
namespace {

struct Part {
  const char* name;
  Result<void> (*run)(GpuBench&);
};
constexpr Part kParts[] = {{"copies", BenchGpuCopies},
                           {"digest", BenchGpuDigest},
                           {"disk", BenchGpuDisk},
                           {"pages", BenchGpuPages},
                           {"stall", BenchGpuStall}};

void Describe(const GpuBench& bench) {
  const cuda::GpuDescription& gpu = bench.plain->description();
  bench.report.AddFact("gpu", "device",
                       {{"name", gpu.name},
                        {"device", bench.device},
                        {"memory_bytes", gpu.memory_bytes},
                        {"multiprocessors", gpu.multiprocessors},
                        {"driver_cuda", gpu.driver_cuda},
                        {"runtime_cuda", gpu.runtime_cuda}});
}

}  // namespace

Result<void> BenchGpu(const BenchOptions& options, BenchReport& report) {
  cuda::Register();
  GpuBench bench{.options = options, .report = report, .device = options.device};
  auto backend = cuda::FindBackend();
  if (!backend) {
    return Fail(
        backend.error().code,
        fmt::format("no GPU can be measured here: {}; use a machine with a GPU and its driver",
                    backend.error().message));
  }
  bench.backend = *backend;
  CAIRN_TRY_ASSIGN(bench.plain, cuda::PlainGpu::Open(options.device));
  Describe(bench);
  for (const Part& part : kParts) {
    if (options.part.empty() || options.part == part.name) CAIRN_TRY(part.run(bench));
  }
  return {};
}

}  // namespace cairn::tools
