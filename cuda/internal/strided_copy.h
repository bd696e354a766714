#pragma once
/// Strided tensors in the form that the copy kernels use: few dimensions, wide units; and copies
/// between them and packed memory of the same device.

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor/tensor.h"
#include "cuda/internal/cuda_call.h"
#include "cuda/internal/kernels.h"
#include "kv/base/error.h"

namespace cairn::cuda::internal {

/// Joins dimensions that are contiguous with each other, drops dimensions of size 1, and counts the
/// innermost dimension in the widest units (at most 16 bytes) that its length, all strides, the
/// address of the tensor and `alignment` allow. `alignment`: divides all begins and ends of the
/// copied ranges, both in the row-major form and in the packed memory; 0 for no limit.
/// kUnimplemented: more than StridedShape::kMaxDims dimensions remain.
inline Result<StridedShape> ShapeForCopy(const core::TensorView& view, uint64_t alignment) {
  constexpr uint64_t kMaxUnitBytes = 16;
  struct Dim {
    uint64_t size = 0;
    uint64_t step_bytes = 0;
  };
  const uint64_t element_bytes = schema::ElementBytes(view.dtype);
  const std::vector<uint64_t> strides =
      view.strides.empty() ? core::RowMajorStrides(view.shape) : view.strides;
  // Innermost first. The bytes of an element are the first dimension.
  std::vector<Dim> dims{{.size = element_bytes, .step_bytes = 1}};
  for (size_t d = view.shape.size(); d-- > 0;) {
    if (view.shape[d] == 1) continue;
    const uint64_t step_bytes = strides[d] * element_bytes;
    Dim& inner = dims.back();
    if (step_bytes == inner.size * inner.step_bytes) {
      inner.size *= view.shape[d];
    } else {
      dims.push_back({.size = view.shape[d], .step_bytes = step_bytes});
    }
  }
  if (dims.size() > StridedShape::kMaxDims) {
    return Fail(ErrorCode::kUnimplemented,
                fmt::format("a strided tensor of {} dimensions on a GPU, more than {} of which "
                            "are not contiguous with each other; make it contiguous first",
                            view.shape.size(), int{StridedShape::kMaxDims}));
  }
  // The lowest bit that is set in any of them is the widest unit that divides all.
  uint64_t all = kMaxUnitBytes | alignment | dims.front().size |
                 static_cast<uint64_t>(reinterpret_cast<uintptr_t>(view.data));
  for (size_t d = 1; d < dims.size(); ++d) all |= dims[d].step_bytes;
  const uint64_t unit_bytes = uint64_t{1} << std::countr_zero(all);

  StridedShape shape;
  shape.unit_bytes = static_cast<int>(unit_bytes);
  for (size_t d = dims.size(); d-- > 0;) {
    shape.sizes[shape.dims] = dims[d].size;
    shape.steps_bytes[shape.dims] = dims[d].step_bytes;
    ++shape.dims;
  }
  shape.sizes[shape.dims - 1] /= unit_bytes;
  shape.steps_bytes[shape.dims - 1] = unit_bytes;
  return shape;
}

/// Returns the copy of bytes [begin_bytes, begin_bytes + length_bytes) of the row-major form of
/// `view` to packed memory, or with `unpack` from it; the caller sets `packed`. `alignment` and
/// errors: see ShapeForCopy.
inline Result<StridedCopyJob> MakeStridedJob(const core::TensorView& view, uint64_t begin_bytes,
                                             uint64_t length_bytes, uint64_t alignment,
                                             bool unpack) {
  StridedCopyJob job{.unpack = unpack};
  CAIRN_TRY_ASSIGN(job.shape, ShapeForCopy(view, alignment | begin_bytes | length_bytes));
  const auto unit_bytes = static_cast<uint64_t>(job.shape.unit_bytes);
  job.tensor = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(view.data));
  job.begin_units = begin_bytes / unit_bytes;
  job.unit_count = length_bytes / unit_bytes;
  return job;
}

/// Enqueues such a copy on `stream`, whose device must be current.
inline Result<void> EnqueueStridedCopy(const core::TensorView& view, uint64_t begin_bytes,
                                       std::span<unsigned char> packed, bool unpack,
                                       int multiprocessors, cudaStream_t stream) {
  CAIRN_TRY_ASSIGN(StridedCopyJob job,
                   MakeStridedJob(view, begin_bytes, packed.size(),
                                  reinterpret_cast<uintptr_t>(packed.data()), unpack));
  job.packed = packed.data();
  return Check(LaunchStrided(job, multiprocessors, stream), "packing a strided tensor on the GPU");
}

}  // namespace cairn::cuda::internal
