// Axes of a map become dimensions of a region.

#include "core/tensor/internal/mapped_region.h"

namespace cairn::core::internal {

std::vector<uint64_t> InBytes(std::vector<uint64_t> strides, uint64_t element_bytes) {
  for (uint64_t& stride : strides) stride *= element_bytes;
  return strides;
}

std::vector<uint64_t> TargetStridesBytes(const TensorTarget& target) {
  return InBytes(target.strides.empty() ? RowMajorStrides(target.shape) : target.strides,
                 schema::ElementBytes(target.dtype));
}

StridedRegion MappedRegion(const IndexMap& map, std::span<const uint64_t> source_strides,
                           int64_t base_bytes, RegionElement element, const TensorTarget& target) {
  const std::vector<uint64_t> target_strides = TargetStridesBytes(target);
  std::vector<uint64_t> sizes, sources, targets;
  for (const IndexAxis& axis : map.axes) {
    sizes.push_back(axis.size);
    sources.push_back(axis.source_step * source_strides[axis.source_dim]);
    targets.push_back(axis.target_step * target_strides[axis.target_dim]);
  }
  for (size_t d = 0; d < map.source_offsets.size(); ++d) {
    base_bytes += static_cast<int64_t>(map.source_offsets[d] * source_strides[d]);
  }
  uint64_t position = 0;
  for (size_t d = 0; d < map.target_offsets.size(); ++d) {
    position += map.target_offsets[d] * target_strides[d];
  }
  return StridedRegion(sizes, sources, targets, element, base_bytes, target.data + position);
}

}  // namespace cairn::core::internal
