#pragma once
/// Regions of payload for the elements that an IndexMap maps to a target.

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor/index_map.h"
#include "core/tensor/internal/strided_region.h"
#include "core/tensor/tensor.h"

namespace cairn::core::internal {

/// Returns strides in bytes.
std::vector<uint64_t> InBytes(std::vector<uint64_t> strides, uint64_t element_bytes);

/// Returns the strides of a target in bytes, one per dimension.
std::vector<uint64_t> TargetStridesBytes(const TensorTarget& target);

/// Returns the region that copies what `map` maps. The source element with indices of 0 is at
/// `base_bytes` of the payload; `source_strides` are in bytes. Requires a map inside both tensors.
StridedRegion MappedRegion(const IndexMap& map, std::span<const uint64_t> source_strides,
                           int64_t base_bytes, RegionElement element, const TensorTarget& target);

}  // namespace cairn::core::internal
