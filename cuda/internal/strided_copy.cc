// One launch of the kernel for strided tensors.

#include "cuda/internal/strided_copy.h"

#include "cuda/internal/copy_kernels.h"
#include "cuda/internal/cuda_call.h"
#include "cuda/internal/strided_shape.h"

namespace cairn::cuda::internal {

Result<void> EnqueueStridedCopy(const core::TensorView& view, uint64_t begin_bytes,
                                std::span<unsigned char> packed, StridedDirection direction,
                                int multiprocessors, cudaStream_t stream) {
  const uint64_t alignment =
      begin_bytes | packed.size() | reinterpret_cast<uintptr_t>(packed.data());
  StridedCopyJob job{.packed = packed.data(), .unpack = direction == StridedDirection::kUnpack};
  CAIRN_TRY_ASSIGN(job.shape, ShapeForCopy(view, alignment));
  const auto unit_bytes = static_cast<uint64_t>(job.shape.unit_bytes);
  job.tensor = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(view.data));
  job.begin_units = begin_bytes / unit_bytes;
  job.unit_count = packed.size() / unit_bytes;
  return Check(LaunchStrided(job, multiprocessors, stream), "packing a strided tensor on the GPU");
}

}  // namespace cairn::cuda::internal
