#pragma once
/// Results of the CUDA runtime as errors, and the device that calls are made for.

#include <cuda_runtime_api.h>

#include "kv/error.h"

namespace cairn::cuda::internal {

/// Success, or what failed while `what` ("copying to the host") was attempted. The runtime's sticky
/// last error is cleared, so that the caller's own checks do not find ours.
///
/// kResourceExhausted: device or page-locked memory; kFailedPrecondition: no GPU, no driver, or one
/// that is too old; kInvalidArgument: memory or a stream that is not the device's; kUnavailable:
/// the device failed, and with it every later call of this process.
Result<void> Check(cudaError_t status, const char* what);

/// For destructors: nothing can be done about an error there, which a later call meets again.
inline void Ignore(cudaError_t status) noexcept {
  if (status != cudaSuccess) (void)cudaGetLastError();
}

/// True if this process uses the device already: it has made its primary context. Where the driver
/// cannot be asked, true.
bool HasContext(int device) noexcept;

/// Makes `device` current for this thread and the one before again at the end; but not one that the
/// process does not use, such as device 0 in a rank that only knows device 3: that would take some
/// hundred MiB of its memory for a context. Does not throw; a device that cannot be made current
/// fails the calls inside the scope.
class DeviceScope {
 public:
  explicit DeviceScope(int device) noexcept {
    Ignore(cudaGetDevice(&before_));
    if (device != before_) Ignore(cudaSetDevice(device));
    changed_ = device != before_;
  }
  ~DeviceScope() {
    if (changed_ && before_ >= 0 && HasContext(before_)) Ignore(cudaSetDevice(before_));
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = -1;
  bool changed_ = false;
};

}  // namespace cairn::cuda::internal
