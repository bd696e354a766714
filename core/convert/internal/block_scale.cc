// One row of blocks after the other, on all cores; inside a block, along the smallest stride.

#include "core/convert/internal/block_scale.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/tensor/element_cast.h"
#include "kv/base/div.h"
#include "kv/io/worker_pool.h"

namespace cairn::core::internal {
namespace {

constexpr uint64_t kBufferElements = 256;

// Multiplies elements of one dtype in memory.
class Multiplier {
 public:
  explicit Multiplier(DType dtype)
      : element_bytes_(schema::ElementBytes(dtype)),
        widen_(FindElementCast(dtype, DType::kFloat32)),
        narrow_(FindElementCast(DType::kFloat32, dtype)) {}

  void Run(std::byte* data, uint64_t count, uint64_t stride, float factor) const {
    if (stride != 1) {
      for (uint64_t i = 0; i < count; ++i) Row(data + i * stride * element_bytes_, 1, factor);
      return;
    }
    for (uint64_t i = 0; i < count; i += kBufferElements) {
      Row(data + i * element_bytes_, std::min(kBufferElements, count - i), factor);
    }
  }

  uint64_t element_bytes() const { return element_bytes_; }

 private:
  void Row(std::byte* data, uint64_t count, float factor) const {
    alignas(64) std::array<float, kBufferElements> numbers;
    auto* const bytes = reinterpret_cast<std::byte*>(numbers.data());
    if (widen_ == nullptr) {
      std::copy_n(data, count * sizeof(float), bytes);
    } else {
      widen_(data, bytes, count);
    }
    for (uint64_t i = 0; i < count; ++i) numbers[i] *= factor;
    if (narrow_ == nullptr) {
      std::copy_n(bytes, count * sizeof(float), data);
    } else {
      narrow_(bytes, data, count);
    }
  }

  uint64_t element_bytes_;
  ElementCast widen_;
  ElementCast narrow_;
};

// Multiplies all elements that `map` maps to `target` by one factor.
void MultiplyAll(const Multiplier& multiplier, const IndexMap& map, const TensorTarget& target,
                 std::span<const uint64_t> strides, float factor) {
  struct Dim {
    uint64_t size;
    uint64_t stride;
  };
  std::vector<Dim> dims;
  for (const IndexAxis& axis : map.axes) {
    dims.push_back({axis.size, axis.target_step * strides[axis.target_dim]});
  }
  std::ranges::sort(dims, std::ranges::greater{}, &Dim::stride);
  const Dim inner = dims.empty() ? Dim{1, 1} : dims.back();
  if (!dims.empty()) dims.pop_back();
  uint64_t at = 0;
  for (size_t d = 0; d < strides.size(); ++d) at += map.target_offsets[d] * strides[d];
  std::vector<uint64_t> index(dims.size());
  while (true) {
    multiplier.Run(target.data + at * multiplier.element_bytes(), inner.size, inner.stride, factor);
    size_t d = dims.size();
    while (d > 0 && ++index[d - 1] == dims[d - 1].size) {
      at -= (dims[d - 1].size - 1) * dims[d - 1].stride;
      index[--d] = 0;
    }
    if (d == 0) return;
    at += dims[d - 1].stride;
  }
}

}  // namespace

void MultiplyBlocks(const ScaledPart& part, std::span<const float> factors) {
  const uint64_t block = part.scale.block;
  const uint64_t columns = DivCeil(part.source_shape[1], block);
  const Box bounds = SourceBounds(part.map);
  const uint64_t first_row = bounds.offsets[0] / block;
  const uint64_t end_row = DivCeil(bounds.offsets[0] + bounds.sizes[0], block);
  const uint64_t first_column = bounds.offsets[1] / block;
  const uint64_t end_column = DivCeil(bounds.offsets[1] + bounds.sizes[1], block);
  const Multiplier multiplier(part.target.dtype);
  const std::vector<uint64_t> strides =
      part.target.strides.empty() ? RowMajorStrides(part.target.shape) : part.target.strides;
  kv::WorkerPool pool(end_row - first_row < 4 ? 1 : kv::WorkerThreads());
  pool.Run(end_row - first_row, [&](size_t i, size_t) {
    const uint64_t row = first_row + i;
    const Box band{.offsets = {row * block, 0}, .sizes = {block, part.source_shape[1]}};
    for (const IndexMap& in_band : ClipSource(part.map, band)) {
      for (uint64_t column = first_column; column < end_column; ++column) {
        const Box box{.offsets = {row * block, column * block}, .sizes = {block, block}};
        for (const IndexMap& map : ClipSource(in_band, box)) {
          MultiplyAll(multiplier, map, part.target, strides, factors[row * columns + column]);
        }
      }
    }
  });
}

}  // namespace cairn::core::internal
