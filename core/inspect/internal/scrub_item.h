#pragma once
/// What a verification reads and checks at a time.

#include <cstdint>
#include <string>

#include "core/step/contents.h"

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

}  // namespace cairn::core::internal
