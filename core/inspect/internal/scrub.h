#pragma once
/// Reads payload and page digests, and checks them against the records.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/base/progress.h"
#include "core/step/contents.h"
#include "kv/snapshot.h"
#include "kv/step_info.h"

namespace cairn::core::internal {

/// Payload, page digests, or both, that a chunk record refers to.
struct ScrubItem {
  enum class Part {
    kChunk,        // the payload and the page digests of a chunk with one extent
    kExtent,       // the payload of one of several extents, or a part of it, and its page digests
    kPageDigests,  // only the page digests of a chunk with several extents
  };
  uint64_t step = 0;
  std::string fqn;
  ChunkInfo chunk;  // kExtent: `extents` contains only the extent to be read
  Part part = Part::kChunk;
  uint64_t first_page = 0;  // kExtent: position of the extent in the chunk
};

/// Reads the payload and the stored page digests of every item and checks both against the records.
/// Calls `damage` for each mismatch and each extent that cannot be read. Returns the payload bytes
/// read. Cost: least if `items` are sorted by location. Errors: kCancelled only.
Result<uint64_t> ScrubPayload(const std::shared_ptr<const kv::Snapshot>& snapshot,
                              const std::string& directory, std::span<const ScrubItem> items,
                              const std::function<void(const kv::Damage&)>& damage,
                              const Progress& progress);

}  // namespace cairn::core::internal
