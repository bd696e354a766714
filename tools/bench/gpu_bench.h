#pragma once
/// What the parts of kv-bench gpu share: a GPU, page-locked host memory, and the report.

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/device/device.h"
#include "cuda/measure.h"
#include "tools/bench/model_state.h"
#include "tools/bench/options.h"
#include "tools/bench/report.h"

namespace cairn::tools {

/// Ownership: borrows the options, the report and the backend. Threads: one.
struct GpuBench {
  const BenchOptions& options;
  BenchReport& report;
  core::DeviceBackend* backend = nullptr;  // that of the process
  int device = 0;
  std::unique_ptr<cuda::PlainGpu> plain;
};

/// Page-locked host memory. Ownership: unlocks and frees it. Immovable because the backend knows
/// its address.
class LockedMemory {
 public:
  /// kResourceExhausted: there is not enough memory, or it cannot be locked.
  static Result<std::unique_ptr<LockedMemory>> Make(core::DeviceBackend* backend, uint64_t bytes);
  ~LockedMemory();
  LockedMemory(const LockedMemory&) = delete;
  LockedMemory& operator=(const LockedMemory&) = delete;
  std::span<std::byte> bytes() const { return memory_.bytes_of(0); }

 private:
  LockedMemory(core::DeviceBackend* backend, ModelMemory memory)
      : backend_(backend), memory_(std::move(memory)) {}
  core::DeviceBackend* const backend_;
  const ModelMemory memory_;
};

/// Returns the seconds that `operation` takes by the clock of the host.
Result<double> TimeOf(const std::function<Result<void>()>& operation);

/// Returns a row of `bytes` in `seconds`.
BenchRow GpuRow(const std::string& what, uint64_t run, uint64_t bytes, double seconds);

}  // namespace cairn::tools
