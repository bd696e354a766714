#pragma once
/// What one GPU does at most, by plain CUDA: the limits that the queues, digests and saves are
/// measured against, and a stream that computes as a training does.
///
/// For programs that measure; nothing that saves or loads uses it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kv/error.h"

namespace cairn::cuda {

struct GpuDescription {
  std::string name;
  std::string driver_cuda;  // the newest CUDA that the driver knows: "13.0"
  std::string runtime_cuda;
  uint64_t memory_bytes = 0;
  int multiprocessors = 0;
};

/// Works on one stream of its own and waits for each piece of work, but for Compute and Fill.
/// Errors: as core::DeviceBackend. Threads: one at a time.
class PlainGpu {
 public:
  /// Errors as FindBackend; kInvalidArgument: no such device.
  static Result<std::unique_ptr<PlainGpu>> Open(int device);
  virtual ~PlainGpu() = default;

  virtual const GpuDescription& description() const = 0;

  /// Seconds of one cudaMemcpyAsync, by the host's clock until its stream is done. `host` is
  /// page-locked and as long as the device's bytes.
  virtual Result<double> CopyOut(const std::byte* source, std::span<std::byte> host) = 0;
  virtual Result<double> CopyIn(std::span<const std::byte> host, std::byte* target) = 0;

  /// Seconds of one kernel over device memory, by the device's clock: the page digests in chunks of
  /// 4 MiB, and the kernel that reads the same bytes and does next to nothing with them.
  virtual Result<double> Digest(const std::byte* source, uint64_t length_bytes) = 0;
  virtual Result<double> Read(const std::byte* source, uint64_t length_bytes) = 0;

  /// A cudaStream_t that a training would use. It is not that of the measurements above.
  virtual void* training_stream() const = 0;
  /// Seconds of one kernel of Compute, by the host's clock over some of them.
  virtual Result<double> KernelSeconds() = 0;
  /// Enqueues that many kernels of arithmetic, which keep every multiprocessor busy for about a
  /// millisecond each.
  virtual Result<void> Compute(uint64_t kernel_count) = 0;
  /// Enqueues on the training's stream: the bytes become `value`.
  virtual Result<void> Fill(std::byte* target, uint64_t length_bytes, uint8_t value) = 0;
  /// Waits for the training's stream.
  virtual Result<void> Synchronize() = 0;
};

}  // namespace cairn::cuda
