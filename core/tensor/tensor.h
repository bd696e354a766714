#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Views of tensors: dtype, shape, strides and a pointer to memory that the caller owns.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kv/base/error.h"
#include "schema/dtype.h"

namespace cairn::core {

using schema::DType;
using Shape = std::vector<uint64_t>;  // elements per dimension; empty for a scalar

/// Host memory. Other numbers are accelerators, as CUDA numbers them.
inline constexpr int kHostDevice = -1;

/// Borrowed, read-only tensor memory. `strides` has one stride per dimension, in elements; empty
/// means row-major contiguous. Strides may be 0 (expanded tensors) but not negative.
struct TensorView {
  DType dtype = DType::kUnknown;
  Shape shape;
  std::vector<uint64_t> strides;
  const std::byte* data = nullptr;  // element 0; may be null if there are no elements
  int device = kHostDevice;         // `data` is in the memory of this device

  /// True if both views are of the same memory.
  friend bool operator==(const TensorView&, const TensorView&) = default;
};

/// Borrowed, writable tensor memory, with strides as in TensorView. Elements must not overlap.
struct TensorTarget {
  DType dtype = DType::kUnknown;
  Shape shape;
  std::vector<uint64_t> strides;
  std::byte* data = nullptr;
  int device = kHostDevice;
};

/// An n-dimensional box of elements: [offsets[d], offsets[d] + sizes[d]) in each dimension d.
struct Box {
  std::vector<uint64_t> offsets;
  Shape sizes;
  friend bool operator==(const Box&, const Box&) = default;
};

/// Number of elements; 1 for a scalar. kInvalidArgument: it exceeds 2^63 - 1.
Result<uint64_t> ElementCount(std::span<const uint64_t> shape);
/// Bytes of a row-major tensor. kInvalidArgument: they exceed 2^63 - 1, or the dtype is unknown.
Result<uint64_t> TensorBytes(DType dtype, std::span<const uint64_t> shape);
/// True if a tensor or box of these sizes has no elements.
bool HasNoElements(std::span<const uint64_t> sizes);
/// Row-major strides in elements. Requires a shape that ElementCount accepts.
std::vector<uint64_t> RowMajorStrides(std::span<const uint64_t> shape);
/// True for row-major contiguous memory. Strides of dimensions of size 1, and of tensors without
/// elements, have no effect. Requires strides that CheckStrides accepts.
bool IsContiguous(std::span<const uint64_t> shape, std::span<const uint64_t> strides);
/// kInvalidArgument: `strides` is not empty and does not have one stride per dimension.
Result<void> CheckStrides(std::span<const uint64_t> shape, std::span<const uint64_t> strides);

/// Bytes from the first element of a strided tensor to the end of the last, or nothing if they
/// exceed 2^64 - 1. Requires one stride per dimension, and at least one element.
std::optional<uint64_t> SpanBytes(uint64_t element_bytes, std::span<const uint64_t> shape,
                                  std::span<const uint64_t> strides);

/// The whole tensor as a box.
Box WholeBox(std::span<const uint64_t> shape);
/// True if `box` has the dimensions of `shape` and is inside it.
bool BoxFits(const Box& box, std::span<const uint64_t> shape);
/// The common part of two boxes; its size is 0 in each dimension in which they have none. Requires
/// the same number of dimensions.
Box Intersect(const Box& a, const Box& b);

/// The part of a tensor that is at `box`, in indices of `view`. View: TensorView or TensorTarget.
/// Requires a box inside the shape of `view`, and strides that CheckStrides accepts.
template <typename View>
View Narrow(View view, const Box& box) {
  CAIRN_CHECK(BoxFits(box, view.shape));
  if (box.sizes == view.shape) return view;
  if (view.strides.empty()) view.strides = RowMajorStrides(view.shape);
  view.shape = box.sizes;
  if (view.data == nullptr) return view;
  uint64_t elements = 0;
  for (size_t d = 0; d < box.sizes.size(); ++d) elements += box.offsets[d] * view.strides[d];
  view.data += elements * schema::ElementBytes(view.dtype);
  return view;
}

}  // namespace cairn::core
