#pragma once
/// The page digests of chunks as they stand in the segments, each beside the pages that it is of.

#include <cstdint>
#include <span>
#include <vector>

#include "core/step/contents.h"
#include "kv/read_range.h"
#include "kv/snapshot.h"


namespace cairn::core::internal {

/// Adds the ranges that read the digests of the chunk's pages into `leaves`, which get their size
/// here and must stay where they are until they are read. They are to be checked then: the chunk's
/// digest is RootDigest of them.
void AddPageDigestRanges(const kv::Extents& extents, std::vector<uint64_t>& page_digests,
                   std::vector<kv::ReadRange>& ranges);

/// The page digests of each of the chunks; none where they cannot be read, or do not make the
/// digest of the chunk. One batch of reads.
std::vector<std::vector<uint64_t>> ReadStoredPageDigests(const kv::Snapshot& snapshot,
                                                    std::span<const ChunkInfo* const> chunks);

}  // namespace cairn::core::internal
