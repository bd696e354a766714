#pragma once
// SPDX-License-Identifier: Apache-2.0
/// The limits of one GPU, measured with plain CUDA: the speeds with which queues and digests are
/// compared.
///
/// For benchmarks only; saves and loads do not use it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kv/base/error.h"

namespace cairn::cuda {

struct GpuDescription {
  std::string name;
  std::string driver_cuda;   // the newest CUDA version that the driver supports, such as "13.0"
  std::string runtime_cuda;  // the CUDA version of the runtime library
  uint64_t memory_bytes = 0;
  int multiprocessors = 0;
};

/// Measures on its own stream. Every member waits until its work is done.
///
/// Errors: kResourceExhausted: no device memory is left. kUnavailable: the device failed. Threads:
/// one at a time.
class PlainGpu {
 public:
  /// kFailedPrecondition: there is no GPU or no suitable driver. kInvalidArgument: there is no such
  /// device.
  static Result<std::unique_ptr<PlainGpu>> Open(int device);
  virtual ~PlainGpu() = default;

  virtual const GpuDescription& description() const = 0;

  /// Returns the seconds of one cudaMemcpyAsync of `host.size()` bytes, measured by the clock of
  /// the host until the stream is done. Requires page-locked `host`.
  virtual Result<double> CopyOut(const std::byte* source, std::span<std::byte> host) = 0;
  virtual Result<double> CopyIn(std::span<const std::byte> host, std::byte* target) = 0;

  /// Return the seconds of one kernel over device memory, measured by the clock of the device.
  /// Digest computes the page digests of chunks of 4 MiB; Read only reads the same bytes.
  virtual Result<double> Digest(const std::byte* source, uint64_t length_bytes) = 0;
  virtual Result<double> Read(const std::byte* source, uint64_t length_bytes) = 0;
};

}  // namespace cairn::cuda
