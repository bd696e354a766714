// Reading of page digests.

#include "core/step/internal/stored_leaves.h"

#include <bit>

#include "kv/read_range.h"
#include "kv/snapshot.h"

namespace cairn::core::internal {

// They are read from the segment as they lie.
static_assert(std::endian::native == std::endian::little);

void AddLeafRanges(const kv::Extents& extents, std::vector<uint64_t>& leaves,
                   std::vector<kv::ReadRange>& ranges) {
  leaves.resize(kv::PageCount(extents.length_bytes()));
  std::span<uint64_t> rest(leaves);
  for (const kv::Extent& extent : extents) {
    const auto count = static_cast<size_t>(kv::PageCount(extent.length_bytes));
    ranges.push_back({.segment_id = extent.segment_id,
                      .offset_bytes = extent.leaves_offset_bytes,
                      .target = std::as_writable_bytes(rest.first(count))});
    rest = rest.subspan(count);
  }
}

std::vector<std::vector<uint64_t>> ReadStoredLeaves(const kv::Snapshot& snapshot,
                                                    std::span<const ChunkInfo* const> chunks) {
  std::vector<std::vector<uint64_t>> leaves(chunks.size());
  std::vector<kv::ReadRange> ranges;
  for (size_t i = 0; i < chunks.size(); ++i) AddLeafRanges(chunks[i]->extents, leaves[i], ranges);
  // Where one range fails, others may not be read: what has not come makes no root.
  (void)snapshot.Read(ranges, 1, [](size_t, auto) { return Result<void>(); });
  for (size_t i = 0; i < chunks.size(); ++i) {
    const bool right = kv::RootDigest(leaves[i], chunks[i]->length_bytes()) == chunks[i]->digest;
    if (!right) leaves[i].clear();
  }
  return leaves;
}

}  // namespace cairn::core::internal
