#pragma once
/// Reads the page digests of chunks. Segments store them next to the pages; if a chunk has deltas,
/// they are in its last delta.

#include <cstdint>
#include <span>
#include <vector>

#include "core/step/contents.h"
#include "kv/base/read_range.h"
#include "kv/read/snapshot.h"

namespace cairn::core::internal {

/// Adds to `ranges` the reads of the page digests of a chunk without deltas that has these extents.
/// Resizes `page_digests`, which is the target of the reads and must stay where it is until they
/// are done. The caller checks what was read: RootDigest of the page digests is the digest of the
/// chunk.
void AddPageDigestRanges(const kv::Extents& extents, std::vector<uint64_t>& page_digests,
                         std::vector<kv::ReadRange>& ranges);

/// Adds the reads of the page digests of a chunk, which may have deltas, in the same way.
void AddPageDigestRanges(const ChunkInfo& chunk, std::vector<uint64_t>& page_digests,
                         std::vector<kv::ReadRange>& ranges);

/// Reads the bytes of an extent, and the digests next to its pages, with which it does not compare
/// them. Requires as many bytes and digests as the extent has. Errors: as in Snapshot::Read.
Result<void> ReadWithPageDigests(const kv::Snapshot& snapshot, const kv::Extent& extent,
                                 std::span<std::byte> bytes, std::span<uint64_t> page_digests);

/// Returns whether the segments contain as many bytes as the record of a chunk names, so that there
/// may be memory for them. Makes no request for a chunk of at most 1 GiB.
bool HasBytes(const kv::Snapshot& snapshot, const kv::Extents& payload);

/// Returns the page digests of each chunk; empty for a chunk whose page digests cannot be read, or
/// whose RootDigest is not the digest of the chunk. Cost: one batch of reads.
std::vector<std::vector<uint64_t>> ReadStoredPageDigests(const kv::Snapshot& snapshot,
                                                         std::span<const ChunkInfo* const> chunks);

}  // namespace cairn::core::internal
