#pragma once
/// What the parts of kv-bench gpu share: a GPU, memory on it and on the host, and where rows go.

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/device/device.h"
#include "cuda/measure.h"
#include "tools/bench/verbs.h"
#include "tools/bench/model_state.h"

namespace cairn::tools::internal {

/// Ownership: borrows the report and the process's backend. Threads: one.
struct GpuBench {
  const BenchOptions& options;
  BenchReport& report;
  core::DeviceBackend* backend = nullptr;  // of the process
  int device = 0;
  std::unique_ptr<cuda::PlainGpu> plain;
};

/// Page-locked host memory. Ownership: unlocks and frees it. Immovable: the backend knows its
/// address.
class LockedMemory {
 public:
  /// kResourceExhausted: there is not so much memory, or it cannot be locked.
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

/// Seconds of `work` by the host's clock.
Result<double> TimeWork(const std::function<Result<void>()>& work);

/// A row of `bytes` in `seconds`.
BenchRow GpuRow(const std::string& what, uint64_t run, uint64_t bytes, double seconds);

/// Queues against cudaMemcpyAsync, for large tensors and for 20,000 small ones, both ways.
Result<void> BenchGpuCopies(GpuBench& bench);
/// The digest kernel against one that only reads.
Result<void> BenchGpuDigest(GpuBench& bench);
/// Durable saves from the device and cold loads to it, against fio.
Result<void> BenchGpuDisk(GpuBench& bench);
/// Saves where nothing and where 1 % of the pages changed: what crosses the bus.
Result<void> BenchGpuPages(GpuBench& bench);
/// What AsyncSaver::Save costs the steps of a training.
Result<void> BenchGpuStall(GpuBench& bench);

}  // namespace cairn::tools::internal
