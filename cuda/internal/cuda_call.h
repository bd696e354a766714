#pragma once
/// Conversion of CUDA runtime results to errors, and the scope of the current device.

#include <cuda_runtime_api.h>

#include "kv/base/error.h"

namespace cairn::cuda::internal {

/// Converts the result of a call that attempted `what` ("copying to the host"). Clears the
/// runtime's sticky last error, so that checks of the application do not report an error of ours.
///
/// kResourceExhausted: no device memory or page-locked memory is left. kFailedPrecondition: there
/// is no GPU, no driver, or the driver is too old. kInvalidArgument: memory or a stream that does
/// not belong to the device. kUnimplemented: this GPU or driver does not support the call.
/// kUnavailable: the device failed, and every later call of this process will fail too.
Result<void> Check(cudaError_t status, const char* what);

/// kFailedPrecondition: the caller's `stream` captures a CUDA graph, to which what is attempted
/// cannot belong.
Result<void> CheckNotCapturing(cudaStream_t stream);

/// Clears the error of a call in a destructor, which cannot report it. A later call will fail
/// again.
inline void Ignore(cudaError_t status) noexcept {
  if (status != cudaSuccess) (void)cudaGetLastError();
}

/// Returns true if this process already uses the device, that is, has created its primary context,
/// or if the driver cannot be asked.
bool HasContext(int device) noexcept;

/// Makes `device` current for this thread, and the previous device again at the end of the scope.
/// Calls in the scope neither fail nor invalidate anything while another thread captures a CUDA
/// graph: calls that wait, query or allocate would, unless the thread states that it knows. It does
/// not restore a device that the process does not use, such as device 0 in a rank that uses only
/// device 3: that would create a context, which takes several hundred MiB of device memory. Does
/// not throw; if `device` cannot be made current, the calls inside the scope fail.
class DeviceScope {
 public:
  explicit DeviceScope(int device) noexcept {
    Ignore(cudaGetDevice(&before_));
    if (device != before_) Ignore(cudaSetDevice(device));
    changed_ = device != before_;
    Ignore(cudaThreadExchangeStreamCaptureMode(&capture_mode_));
  }
  ~DeviceScope() {
    Ignore(cudaThreadExchangeStreamCaptureMode(&capture_mode_));
    if (changed_ && before_ >= 0 && HasContext(before_)) Ignore(cudaSetDevice(before_));
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = -1;
  bool changed_ = false;
  cudaStreamCaptureMode capture_mode_ = cudaStreamCaptureModeRelaxed;  // in the scope, then before
};

}  // namespace cairn::cuda::internal
