#include "core/tensor/strided_copy.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/tensor/internal/strided_region.h"

namespace cairn::core {
namespace {

// Maps the row-major payload of a tensor to its memory. Requires that it has elements.
template <typename View>
internal::StridedRegion RegionOf(const View& view) {
  const uint64_t element_bytes = schema::ElementBytes(view.dtype);
  return {view.shape,
          internal::InBytes(RowMajorStrides(view.shape), element_bytes),
          internal::InBytes(view.strides, element_bytes),
          element_bytes,
          0,
          const_cast<std::byte*>(view.data)};
}

}  // namespace

void GatherBytes(const TensorView& source, uint64_t begin_bytes, std::span<std::byte> target) {
  if (target.empty()) return;
  if (IsContiguous(source.shape, source.strides)) {
    std::memcpy(target.data(), source.data + begin_bytes, target.size());
    return;
  }
  RegionOf(source).CopyTo(target, begin_bytes);
}

void ScatterBytes(std::span<const std::byte> payload, const TensorTarget& target,
                  uint64_t begin_bytes) {
  if (payload.empty()) return;
  if (IsContiguous(target.shape, target.strides)) {
    std::memcpy(target.data + begin_bytes, payload.data(), payload.size());
    return;
  }
  RegionOf(target).CopyFrom(payload, begin_bytes);
}

void CopyTensor(const TensorView& source, const TensorTarget& target) {
  CAIRN_CHECK(source.dtype == target.dtype && source.shape == target.shape);
  if (HasNoElements(source.shape)) return;
  const bool source_is_row_major = IsContiguous(source.shape, source.strides);
  const bool target_is_row_major = IsContiguous(target.shape, target.strides);
  if (source.data == target.data && source_is_row_major == target_is_row_major &&
      (source_is_row_major || source.strides == target.strides)) {
    return;  // source and target are the same tensor
  }
  const uint64_t length_bytes = *TensorBytes(source.dtype, source.shape);
  if (source_is_row_major) {
    ScatterBytes({source.data, length_bytes}, target, 0);
  } else if (target_is_row_major) {
    GatherBytes(source, 0, {target.data, length_bytes});
  } else {
    std::array<std::byte, 16 * 1024> block;  // fits into the L1 cache
    for (uint64_t at = 0; at < length_bytes; at += block.size()) {
      const auto bytes =
          std::span(block).first(std::min<uint64_t>(block.size(), length_bytes - at));
      GatherBytes(source, at, bytes);
      ScatterBytes(bytes, target, at);
    }
  }
}

}  // namespace cairn::core
