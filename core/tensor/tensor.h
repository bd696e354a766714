#pragma once
/// Tensors as Cairn sees them: dtype, shape, strides and a pointer that the caller owns.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/error.h"
#include "schema/dtype.h"

namespace cairn::core {

using schema::DType;
using Shape = std::vector<uint64_t>;  // elements a dimension; empty for a scalar

/// Memory of this host; other numbers are those of accelerators, as CUDA counts them.
inline constexpr int kHostDevice = -1;

/// Borrowed, read-only tensor memory. `strides` are in elements, one a dimension; empty means
/// row-major contiguous. Strides of 0 (expanded tensors) are fine; negative ones cannot be said.
struct TensorView {
  DType dtype = DType::kUnknown;
  Shape shape;
  std::vector<uint64_t> strides;
  const std::byte* data = nullptr;  // element 0; may be null when there are no elements
  int device = kHostDevice;         // whose memory `data` is in
};

/// Borrowed, writable tensor memory; elements must not overlap each other.
struct TensorTarget {
  DType dtype = DType::kUnknown;
  Shape shape;
  std::vector<uint64_t> strides;
  std::byte* data = nullptr;
  int device = kHostDevice;
};

/// An N-d box in elements: `[offsets[d], offsets[d] + sizes[d])`.
struct Box {
  std::vector<uint64_t> offsets;
  Shape sizes;
  friend bool operator==(const Box&, const Box&) = default;
};

/// 1 for a scalar. kInvalidArgument: the product overflows.
Result<uint64_t> ElementCount(std::span<const uint64_t> shape);
/// Bytes of a row-major tensor. kInvalidArgument: overflow, or an unknown dtype.
Result<uint64_t> TensorBytes(DType dtype, std::span<const uint64_t> shape);
/// Row-major strides in elements. Requires a shape that ElementCount accepts.
std::vector<uint64_t> RowMajorStrides(std::span<const uint64_t> shape);
/// True for row-major contiguous memory; dimensions of size 1 and empty tensors do not matter.
bool IsContiguous(std::span<const uint64_t> shape, std::span<const uint64_t> strides);

/// The whole tensor as a box.
Box WholeBox(std::span<const uint64_t> shape);
/// False if ranks differ or the box leaves the shape.
bool BoxFits(const Box& box, std::span<const uint64_t> shape);
/// The common box; sizes hold a 0 where there is none. Requires equal ranks.
Box Intersect(const Box& a, const Box& b);

}  // namespace cairn::core
