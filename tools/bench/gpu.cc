// kv-bench gpu: what is asked for, on what it runs, and what its parts share.

#include "tools/bench/gpu.h"

#include <fmt/format.h>

#include <chrono>

#include "cuda/backend.h"
#include "cuda/gds.h"

namespace cairn::tools::internal {
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
  const auto direct = cuda::FindGpuDirectStorage(bench.options.directory);
  bench.report.AddFact(
      "gpu", "device",
      {{"name", gpu.name},
       {"device", bench.device},
       {"memory_bytes", gpu.memory_bytes},
       {"multiprocessors", gpu.multiprocessors},
       {"driver_cuda", gpu.driver_cuda},
       {"runtime_cuda", gpu.runtime_cuda},
       {"gpudirect_storage", direct ? "on" : "off: " + direct.error().message}});
}

}  // namespace

Result<std::unique_ptr<LockedMemory>> LockedMemory::Make(core::DeviceBackend* backend,
                                                         uint64_t bytes) {
  CAIRN_TRY_ASSIGN(ModelMemory memory,
                   ModelMemory::Allocate({{"host", core::DType::kUInt8, {bytes}, bytes, 0}}));
  CAIRN_TRY(backend->Pin(memory.bytes_of(0)));
  return std::unique_ptr<LockedMemory>(new LockedMemory(backend, std::move(memory)));
}

LockedMemory::~LockedMemory() { backend_->Unpin(memory_.bytes_of(0)); }

Result<double> TimeWork(const std::function<Result<void>()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  CAIRN_TRY(work());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

BenchRow GpuRow(const std::string& what, uint64_t run, uint64_t bytes, double seconds) {
  BenchRow row{.verb = "gpu", .what = what, .run = run, .bytes = bytes};
  row.measured.seconds = seconds;
  row.in_this_process = false;  // neither processor time nor memory was taken
  return row;
}

Result<void> BenchGpu(const BenchOptions& options, BenchReport& report) {
  cuda::Register();
  GpuBench bench{.options = options, .report = report, .device = options.device};
  auto backend = cuda::FindBackend();
  if (!backend) {
    return Fail(backend.error().code,
                fmt::format("no GPU can be measured here: {}", backend.error().message));
  }
  bench.backend = *backend;
  CAIRN_TRY_ASSIGN(bench.plain, cuda::PlainGpu::Open(options.device));
  Describe(bench);
  for (const Part& part : kParts) {
    if (options.part.empty() || options.part == part.name) CAIRN_TRY(part.run(bench));
  }
  return {};
}

}  // namespace cairn::tools::internal
