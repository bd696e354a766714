#pragma once
/// Where payload of a store was moved to, for the records that refer to it.

#include <cstdint>
#include <optional>

#include "kv/base/extents.h"

namespace cairn::kv::internal {

class PayloadMoves {
 public:
  virtual ~PayloadMoves() = default;
  /// Whether chunks with an extent in the segment may have been moved.
  virtual bool Contains(uint64_t segment_id) const = 0;
  /// Returns the extents of a chunk after the move; nothing if they are the same.
  virtual std::optional<ChunkExtents> Moved(const ChunkExtents& extents) const = 0;
};

}  // namespace cairn::kv::internal
