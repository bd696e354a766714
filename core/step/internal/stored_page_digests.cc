#include "core/step/internal/stored_page_digests.h"

#include <algorithm>
#include <bit>
#include <map>

#include "core/codec/internal/delta.h"

namespace cairn::core::internal {

// Segments store little-endian numbers, which are read directly into memory.
static_assert(std::endian::native == std::endian::little);

void AddPageDigestRanges(const kv::Extents& extents, std::vector<uint64_t>& page_digests,
                         std::vector<kv::ReadRange>& ranges) {
  page_digests.resize(extents.page_count());
  std::span<uint64_t> rest(page_digests);
  for (const kv::Extent& extent : extents) {
    const auto count = static_cast<size_t>(extent.page_count());
    ranges.push_back({.segment_id = extent.segment_id,
                      .offset_bytes = extent.page_digests_offset_bytes,
                      .target = std::as_writable_bytes(rest.first(count))});
    rest = rest.subspan(count);
  }
}

void AddPageDigestRanges(const ChunkInfo& chunk, std::vector<uint64_t>& page_digests,
                         std::vector<kv::ReadRange>& ranges) {
  if (chunk.deltas.empty()) return AddPageDigestRanges(chunk.extents, page_digests, ranges);
  page_digests.resize(kv::PageCount(chunk.length_bytes()));
  const kv::Extent& last = chunk.deltas.back();
  ranges.push_back({.segment_id = last.segment_id,
                    .offset_bytes = last.offset_bytes + kDeltaPageDigestsOffset,
                    .target = std::as_writable_bytes(std::span(page_digests))});
}

Result<void> ReadWithPageDigests(const kv::Snapshot& snapshot, const kv::Extent& extent,
                                 std::span<std::byte> bytes, std::span<uint64_t> page_digests) {
  const kv::ReadRange ranges[] = {
      {.segment_id = extent.segment_id, .offset_bytes = extent.offset_bytes, .target = bytes},
      {.segment_id = extent.segment_id,
       .offset_bytes = extent.page_digests_offset_bytes,
       .target = std::as_writable_bytes(page_digests)}};
  CAIRN_TRY(snapshot.Read(ranges, 1, [](size_t, auto) { return Result<void>(); }));
  return {};
}

bool HasBytes(const kv::Snapshot& snapshot, const kv::Extents& payload) {
  if (payload.length_bytes() <= kv::kMaxBytesWithDeltas) return true;
  std::map<uint64_t, uint64_t> ends;      // by segment
  std::vector<kv::ReadRange> last_bytes;  // last bytes of the extents
  for (const kv::Extent& extent : payload) {
    const uint64_t end = extent.offset_bytes + extent.length_bytes;
    ends[extent.segment_id] = std::max(ends[extent.segment_id], end);
    last_bytes.push_back(
        {.segment_id = extent.segment_id, .offset_bytes = end - 1, .target = {}, .lent_bytes = 1});
  }
  const auto ignore = [](size_t, std::span<const std::byte>) -> Result<void> { return {}; };
  if (!snapshot.Read(last_bytes, 1, ignore)) return false;
  uint64_t total = 0;
  for (const auto& [segment_id, end] : ends) total += end;
  return payload.length_bytes() <= total;
}

std::vector<std::vector<uint64_t>> ReadStoredPageDigests(const kv::Snapshot& snapshot,
                                                         std::span<const ChunkInfo* const> chunks) {
  std::vector<std::vector<uint64_t>> page_digests(chunks.size());
  std::vector<kv::ReadRange> ranges;
  for (size_t i = 0; i < chunks.size(); ++i)
    AddPageDigestRanges(*chunks[i], page_digests[i], ranges);
  // An error is ignored: after it some ranges are not read, and RootDigest of their chunks does not
  // match.
  (void)snapshot.Read(ranges, 1, [](size_t, auto) { return Result<void>(); });
  for (size_t i = 0; i < chunks.size(); ++i) {
    const bool right =
        kv::RootDigest(page_digests[i], chunks[i]->length_bytes()) == chunks[i]->digest;
    if (!right) page_digests[i].clear();
  }
  return page_digests;
}

}  // namespace cairn::core::internal
