#include "core/upkeep/file_order.h"

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>

#include "core/step/internal/lookup.h"
#include "kv/base/extents.h"

namespace cairn::core {
namespace {

struct Location {
  uint64_t segment_id = 0;  // 0: no bytes
  uint64_t offset_bytes = 0;
  friend auto operator<=>(const Location&, const Location&) = default;
};

// The bytes of one tensor in each of its segments.
class Segments {
 public:
  void Add(const kv::Extent& extent) {
    Part& part = parts_.try_emplace(extent.segment_id, Part{.begin_bytes = extent.offset_bytes})
                     .first->second;
    part.begin_bytes = std::min(part.begin_bytes, extent.offset_bytes);
    part.length_bytes += extent.length_bytes;
  }

  Location Largest() const {
    Location largest;
    uint64_t length_bytes = 0;
    for (const auto& [segment_id, part] : parts_) {
      if (part.length_bytes <= length_bytes) continue;
      largest = {.segment_id = segment_id, .offset_bytes = part.begin_bytes};
      length_bytes = part.length_bytes;
    }
    return largest;
  }

 private:
  struct Part {
    uint64_t begin_bytes = 0;
    uint64_t length_bytes = 0;
  };
  std::map<uint64_t, Part> parts_;
};

Result<std::vector<Location>> Locate(const internal::StepView& view,
                                     std::span<const TensorInfo> tensors) {
  std::vector<Segments> segments(tensors.size());
  CAIRN_TRY(
      internal::ForEachChunkOf(view, tensors, [&](size_t i, ChunkInfo&& chunk) -> Result<void> {
        chunk.stored().ForEach([&](const kv::Extent& extent) { segments[i].Add(extent); });
        return {};
      }));
  std::vector<Location> locations(tensors.size());
  std::ranges::transform(segments, locations.begin(), &Segments::Largest);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].alias_of) continue;
    const auto owner =
        std::ranges::lower_bound(tensors, *tensors[i].alias_of, {}, &TensorInfo::fqn);
    if (owner == tensors.end() || owner->fqn != *tensors[i].alias_of) continue;
    const size_t index = static_cast<size_t>(owner - tensors.begin());
    if (owner->alias_of) continue;  // a damaged record, which the load reports
    locations[i] = segments[index].Largest();
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
