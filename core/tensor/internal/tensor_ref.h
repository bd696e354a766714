#pragma once
/// Views of tensors and boxes that borrow their numbers, too, for lists of many.

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/tensor/tensor.h"

namespace cairn::core::internal {

/// A TensorView whose shape and strides are in other memory, which must outlive it.
struct TensorRef {
  TensorRef() = default;
  TensorRef(const TensorView& view)  // NOLINT(google-explicit-constructor): borrows a view
      : dtype(view.dtype),
        device(view.device),
        data(view.data),
        shape(view.shape),
        strides(view.strides) {}

  TensorView view() const {
    return {
        dtype, Shape(shape.begin(), shape.end()), {strides.begin(), strides.end()}, data, device};
  }
  /// Requires strides that CheckStrides accepts.
  bool is_contiguous() const { return IsContiguous(shape, strides); }

  DType dtype = DType::kUnknown;
  int device = kHostDevice;
  const std::byte* data = nullptr;
  std::span<const uint64_t> shape;
  std::span<const uint64_t> strides;  // empty: row-major
};

/// A box whose numbers are in other memory, which must outlive it.
struct BoxRef {
  std::span<const uint64_t> numbers;  // offsets, then sizes

  std::span<const uint64_t> offsets() const { return numbers.first(numbers.size() / 2); }
  std::span<const uint64_t> sizes() const { return numbers.last(numbers.size() / 2); }
};

}  // namespace cairn::core::internal
