#pragma once
/// Collects the distinct payload and page digests that the chunk records of several steps refer to,
/// reads them once, and checks them against the records.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/progress.h"
#include "core/step/contents.h"
#include "kv/base/step_info.h"
#include "kv/read/snapshot.h"

namespace cairn::core::internal {

/// Payload, page digests, or both, that a chunk record refers to.
struct ScrubItem {
  enum class Part {
    kChunk,        // the payload and the page digests of a chunk with one extent
    kExtent,       // the payload of one of several extents, or a part of it, and its page digests
    kPageDigests,  // only the page digests of a chunk with several extents
    kDeltas,       // everything of a chunk with deltas
  };
  uint64_t step = 0;
  std::string fqn;
  ChunkInfo chunk;  // kExtent: `extents` contains only the extent to be read
  Part part = Part::kChunk;
  uint64_t first_page = 0;  // kExtent: position of the extent in the chunk
};

/// Chunks are identified by the locations of their extents and deltas. Extents that chunks without
/// deltas have in common are read once. Threads: one.
class PayloadIndex {
 public:
  /// Adds a chunk. Returns the item of an earlier record that describes the same bytes differently,
  /// or null; valid until the next call.
  const ScrubItem* Add(uint64_t step, std::string_view fqn, const ChunkInfo& chunk);

  /// Returns all items by location, and clears the index. Chunks with deltas are last; those that
  /// have extents in common follow each other, by the number of their deltas.
  std::vector<ScrubItem> Take();

 private:
  using Location = std::pair<uint64_t, uint64_t>;  // segment, offset
  using Items = std::map<std::vector<Location>, ScrubItem>;

  Items chunks_;  // without deltas
  Items with_deltas_;
};

/// Reads the payload and the stored page digests of every item and checks both against the records.
/// Calls `damage` for each mismatch and each extent that cannot be read. Returns the payload bytes
/// read. Requires that items with the part kDeltas are last. Cost: least if `items` are sorted by
/// location. Errors: kCancelled only.
Result<uint64_t> ScrubPayload(const std::shared_ptr<const kv::Snapshot>& snapshot,
                              const std::string& directory, std::span<const ScrubItem> items,
                              const std::function<void(const kv::Damage&)>& damage,
                              const Progress& progress);

}  // namespace cairn::core::internal
