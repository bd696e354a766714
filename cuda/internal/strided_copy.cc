#include "cuda/internal/strided_copy.h"

#include <fmt/format.h>

#include <bit>
#include <vector>

#include "cuda/internal/copy_kernels.h"
#include "cuda/internal/cuda_call.h"

namespace cairn::cuda::internal {
namespace {

constexpr uint64_t kMaxUnitBytes = 16;

struct Dim {
  uint64_t size = 0;
  uint64_t step_bytes = 0;
};

// Returns the joined dimensions, innermost first. The bytes of an element are the first dimension.
std::vector<Dim> JoinedDims(const core::TensorView& view, uint64_t element_bytes) {
  const std::vector<uint64_t> strides =
      view.strides.empty() ? core::RowMajorStrides(view.shape) : view.strides;
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
  return dims;
}

}  // namespace

Result<StridedShape> ShapeForCopy(const core::TensorView& view, uint64_t alignment) {
  const std::vector<Dim> dims = JoinedDims(view, schema::ElementBytes(view.dtype));
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
