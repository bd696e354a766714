#include "core/upkeep/file_order.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

#include "core/step/internal/lookup.h"
#include "kv/base/extents.h"

namespace cairn::core {
namespace {

using Location = std::pair<uint64_t, uint64_t>;  // segment, offset; {0, 0}: no bytes

/// Returns the location of the largest extent of each tensor.
Result<std::vector<Location>> Locate(const internal::StepView& view,
                                     std::span<const TensorInfo> tensors) {
  std::vector<kv::Extent> largest(tensors.size());
  CAIRN_TRY(
      internal::ForEachChunkOf(view, tensors, [&](size_t i, ChunkInfo&& chunk) -> Result<void> {
        chunk.stored().ForEach([&](const kv::Extent& extent) {
          if (extent.length_bytes > largest[i].length_bytes) largest[i] = extent;
        });
        return {};
      }));
  std::vector<Location> locations;
  for (const TensorInfo& tensor : tensors) {
    // A damaged record may lack the owner, which the load reports.
    const auto owner = std::ranges::lower_bound(tensors, tensor.alias_of.value_or(tensor.fqn), {},
                                                &TensorInfo::fqn);
    const size_t index = static_cast<size_t>(owner - tensors.begin());
    const kv::Extent extent = owner == tensors.end() ? kv::Extent() : largest[index];
    locations.emplace_back(extent.segment_id, extent.offset_bytes);
  }
  return locations;
}

}  // namespace

Result<std::vector<size_t>> FileOrder(const CheckpointStore& store, const kv::StepInfo& step,
                                      std::span<const TensorInfo> tensors) {
  CAIRN_TRY_ASSIGN(const std::vector<Location> locations,
                   internal::WithStep(store.kv(), step, [&](const internal::StepView& view) {
                     return Locate(view, tensors);
                   }));
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return locations[i]; });
  return order;
}

}  // namespace cairn::core
