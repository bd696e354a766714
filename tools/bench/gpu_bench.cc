// The parts of kv-bench gpu share a GPU, page-locked host memory, and the report.

#include "tools/bench/gpu_bench.h"

#include <chrono>

namespace cairn::tools {

Result<std::unique_ptr<LockedMemory>> LockedMemory::Make(core::DeviceBackend* backend,
                                                         uint64_t bytes) {
  CAIRN_TRY_ASSIGN(ModelMemory memory,
                   ModelMemory::Allocate({{"host", core::DType::kUInt8, {bytes}, bytes, 0}}));
  CAIRN_TRY(backend->Pin(memory.bytes_of(0)));
  return std::unique_ptr<LockedMemory>(new LockedMemory(backend, std::move(memory)));
}

LockedMemory::~LockedMemory() { backend_->Unpin(memory_.bytes_of(0)); }

Result<double> TimeOf(const std::function<Result<void>()>& operation) {
  const auto begin = std::chrono::steady_clock::now();
  CAIRN_TRY(operation());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

BenchRow GpuRow(const std::string& what, uint64_t run, uint64_t bytes, double seconds) {
  BenchRow row{.verb = "gpu", .what = what, .run = run, .bytes = bytes};
  row.measured.seconds = seconds;
  row.in_this_process = false;  // neither processor time nor memory was measured
  return row;
}

}  // namespace cairn::tools
