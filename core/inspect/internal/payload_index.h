#pragma once
/// The payload that chunk records of several steps speak of, so that it is read once.

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/inspect/internal/scrub.h"
#include "core/step/contents.h"

namespace cairn::core::internal {

/// Chunks of one extent are told apart by the place where they begin, those of several by the
/// places of all their extents. Runs that chunks have in common are read once. Threads: one.
class PayloadIndex {
 public:
  /// Null, or what an earlier record says of the same bytes and this one does not; valid until the
  /// next call.
  const ScrubItem* Add(uint64_t step, std::string_view fqn, const ChunkInfo& chunk);

  /// All, by place. The index is empty then.
  std::vector<ScrubItem> Take();

 private:
  using Place = std::pair<uint64_t, uint64_t>;  // segment, offset
  static Place PlaceOf(const kv::Extent& extent) {
    return {extent.segment_id, extent.offset_bytes};
  }
  std::vector<ScrubItem> TakeRuns() const;

  std::map<Place, ScrubItem> whole_;
  std::map<std::vector<Place>, ScrubItem> scattered_;
};

}  // namespace cairn::core::internal
