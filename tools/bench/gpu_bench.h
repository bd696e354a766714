#pragma once
/// The parts of kv-bench gpu share a GPU, page-locked host memory, and the report.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/device/device.h"
#include "core/tensor/tensor.h"
#include "cuda/measure.h"
#include "kv/base/error.h"
#include "tools/bench/report.h"
#include "tools/bench/verbs.h"

namespace cairn::tools {

/// Ownership: borrows the options, the report and the backend. Threads: one.
struct GpuBench {
  const BenchOptions& options;
  BenchReport& report;
  core::DeviceBackend* backend = nullptr;  // the process's backend
  int device = 0;
  std::unique_ptr<cuda::PlainGpu> plain;
};

/// Page-locked host memory.
struct LockedMemory {
  std::shared_ptr<std::byte> memory;  // shared for its deleter, which unlocks and frees it
  uint64_t length_bytes = 0;

  /// kResourceExhausted: there is not enough memory, or it cannot be locked.
  static Result<LockedMemory> Make(core::DeviceBackend* backend, uint64_t bytes);
  std::span<std::byte> bytes() const { return {memory.get(), length_bytes}; }
};

struct BenchTensor {
  std::string fqn;
  core::DType dtype;
  core::Shape shape;
  uint64_t nbytes = 0;
  uint64_t offset_bytes = 0;  // into the memory of the model; a multiple of 64
};

/// A model in device memory, with incompressible bytes. Ownership: owns the memory.
class DeviceModel {
 public:
  /// kInvalidArgument: --bytes is less than 1 MiB.
  static Result<DeviceModel> Make(GpuBench& bench);

  std::byte* data() const { return memory_->data(); }
  uint64_t length_bytes() const { return memory_->length_bytes(); }
  const std::vector<BenchTensor>& tensors() const { return tensors_; }

  core::TensorTarget TargetOf(size_t i) const {
    return {tensors_[i].dtype, tensors_[i].shape, {}, data() + tensors_[i].offset_bytes, device_};
  }
  core::StateDict State() const;
  /// Requests that load every tensor into this memory.
  std::vector<core::LoadRequest> Requests() const;
  /// Page digests of all tensors, in their order.
  Result<std::vector<uint64_t>> PageDigests() const;

 private:
  int device_ = 0;
  std::vector<BenchTensor> tensors_;
  std::unique_ptr<core::DeviceMemory> memory_;
  std::shared_ptr<core::DeviceQueue> queue_;  // a shared_ptr for its deleter
};

/// Returns the seconds that `operation` takes by the clock of the host.
Result<double> TimeOf(const std::function<Result<void>()>& operation);

/// Returns a row of `bytes` in `seconds`.
BenchRow GpuRow(const std::string& what, uint64_t run, uint64_t bytes, double seconds);

// --- kv-bench gpu: copies over the bus, and digests

/// Measures the copies of a device queue compared with cudaMemcpyAsync, for large tensors and for
/// 20,000 small ones, in both directions.
Result<void> BenchGpuCopies(GpuBench& bench);
/// Measures the digest kernel compared with a kernel that only reads.
Result<void> BenchGpuDigest(GpuBench& bench);

// --- kv-bench gpu: saves from a device and loads to it

/// Measures durable saves from the device and cold loads to it, compared with fio.
Result<void> BenchGpuDisk(GpuBench& bench);
/// Measures saves after no page and after 1 % of the pages changed, and the bytes that cross the
/// bus.
Result<void> BenchGpuPages(GpuBench& bench);

}  // namespace cairn::tools
