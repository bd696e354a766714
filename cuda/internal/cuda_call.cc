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

}  // namespace

Result<void> Check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return {};
  (void)cudaGetLastError();
  return Fail(CodeOf(status), fmt::format("{}: CUDA says {} ({})", what, cudaGetErrorString(status),
                                          cudaGetErrorName(status)));
}

}  // namespace cairn::cuda::internal
