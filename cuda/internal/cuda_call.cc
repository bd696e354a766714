// The one place where a cudaError_t becomes an Error.

#include "cuda/internal/cuda_call.h"

#include <fmt/format.h>

namespace cairn::cuda::internal {
namespace {

ErrorCode CodeOf(cudaError_t status) {
  switch (status) {
    case cudaErrorMemoryAllocation:
      return ErrorCode::kResourceExhausted;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorStubLibrary:
      return ErrorCode::kFailedPrecondition;
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorNotSupported:
      return ErrorCode::kUnimplemented;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidDevice:
    case cudaErrorInvalidResourceHandle:
      return ErrorCode::kInvalidArgument;
    default:
      return ErrorCode::kUnavailable;
  }
}

// cuDevicePrimaryCtxGetState, with the driver's types spelled out: the handle of a device is its
// ordinal.
using GetContextState = int (*)(int device, unsigned int* flags, int* active);

GetContextState FindGetContextState() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  constexpr unsigned int kSince = 7000;  // CUDA 7.0
  const cudaError_t status = cudaGetDriverEntryPointByVersion(
      "cuDevicePrimaryCtxGetState", &function, kSince, cudaEnableDefault, &found);
  Ignore(status);
  const bool is_there = status == cudaSuccess && found == cudaDriverEntryPointSuccess;
  return is_there ? reinterpret_cast<GetContextState>(function) : nullptr;
}

}  // namespace

bool HasContext(int device) noexcept {
  static const GetContextState get_state = FindGetContextState();
  unsigned int flags = 0;
  int active = 1;
  return get_state == nullptr || get_state(device, &flags, &active) != 0 || active != 0;
}

Result<void> Check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return {};
  (void)cudaGetLastError();
  return Fail(CodeOf(status), fmt::format("{}: CUDA reports {} ({})", what,
                                          cudaGetErrorString(status), cudaGetErrorName(status)));
}

Result<void> CheckNotCapturing(cudaStream_t stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  CAIRN_TRY(Check(cudaStreamIsCapturing(stream, &capture), "querying the caller's stream"));
  if (capture == cudaStreamCaptureStatusNone) return {};
  return Fail(ErrorCode::kFailedPrecondition,
              "a CUDA graph is being captured on the current stream, and saves and loads cannot be "
              "a part of it: call them before or after the capture");
}

}  // namespace cairn::cuda::internal
