#pragma once
/// Random strided tensors, and naive implementations that read and copy them.

#include <cstring>
#include <numeric>
#include <vector>

#include "core/tensor/tensor.h"
#include "tests/support/result_matchers.h"
#include "tests/support/seeded_random.h"

namespace cairn::core {

struct StridedTensor {
  DType dtype = DType::kUnknown;
  Shape shape;
  std::vector<uint64_t> strides;
  std::vector<std::byte> memory;
  TensorView view() const { return {dtype, shape, strides, memory.data()}; }
  TensorTarget target() { return {dtype, shape, strides, memory.data()}; }
};

/// Calls `visit(index)` for every index of `shape`, in row-major order.
template <typename Visit>
void ForEachIndex(const Shape& shape, const Visit& visit) {
  std::vector<uint64_t> index(shape.size(), 0);
  for (uint64_t left = *ElementCount(shape); left > 0; --left) {
    visit(index);
    for (size_t d = shape.size(); d-- > 0;) {
      if (++index[d] < shape[d]) break;
      index[d] = 0;
    }
  }
}

inline uint64_t Dot(const std::vector<uint64_t>& index, const std::vector<uint64_t>& strides) {
  return std::inner_product(index.begin(), index.end(), strides.begin(), uint64_t{0});
}

/// Strides with permuted dimensions and gaps between rows; with `may_repeat`, some are 0.
inline StridedTensor RandomStrided(testing::SeededRandom& random, bool may_repeat) {
  StridedTensor tensor;
  const DType dtypes[] = {DType::kInt8, DType::kBFloat16, DType::kFloat32, DType::kFloat64,
                          DType::kComplex128};
  tensor.dtype = dtypes[random.Between(0, 4)];
  const size_t dims = random.Between(0, 4);
  std::vector<size_t> order(dims);
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t i = dims; i > 1; --i) std::swap(order[i - 1], order[random.Between(0, i - 1)]);
  tensor.shape.resize(dims);
  tensor.strides.resize(dims);
  uint64_t stride = random.Chance(0.7) ? 1 : 2;
  uint64_t span = 1;
  for (const size_t d : order) {
    tensor.shape[d] = random.Between(1, 6);
    tensor.strides[d] = may_repeat && random.Chance(0.15) ? 0 : stride;
    span += (tensor.shape[d] - 1) * tensor.strides[d];
    stride = stride * tensor.shape[d] + (random.Chance(0.3) ? random.Between(1, 3) : 0);
  }
  tensor.memory.resize(span * schema::ElementBytes(tensor.dtype));
  random.Fill(tensor.memory);
  return tensor;
}

inline std::vector<std::byte> NaiveRowMajor(const TensorView& view) {
  const uint64_t element = schema::ElementBytes(view.dtype);
  const auto strides = view.strides.empty() ? RowMajorStrides(view.shape) : view.strides;
  std::vector<std::byte> bytes;
  ForEachIndex(view.shape, [&](const std::vector<uint64_t>& index) {
    const std::byte* at = view.data + Dot(index, strides) * element;
    bytes.insert(bytes.end(), at, at + element);
  });
  return bytes;
}

inline void NaiveCopyBox(std::span<const std::byte> source, const Box& source_box,
                         StridedTensor& target, const Box& target_box, const Box& box) {
  const uint64_t element = schema::ElementBytes(target.dtype);
  const auto source_strides = RowMajorStrides(source_box.sizes);
  ForEachIndex(box.sizes, [&](const std::vector<uint64_t>& index) {
    uint64_t from = 0, to = 0;
    for (size_t d = 0; d < index.size(); ++d) {
      from += (box.offsets[d] + index[d] - source_box.offsets[d]) * source_strides[d];
      to += (box.offsets[d] + index[d] - target_box.offsets[d]) * target.strides[d];
    }
    std::memcpy(target.memory.data() + to * element, source.data() + from * element, element);
  });
}

}  // namespace cairn::core
