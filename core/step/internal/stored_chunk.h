#pragma once
/// Reads one complete chunk, with its deltas.

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "kv/base/error.h"
#include "kv/base/extents.h"
#include "kv/read/snapshot.h"

namespace cairn::core::internal {

/// Reads the chunk `key` into `bytes`, which has its length, and applies its deltas. Does not
/// compare the result with a digest. See kv::DecodeChunkCallback.
Result<void> ReadStoredChunk(const std::shared_ptr<const kv::Snapshot>& snapshot,
                             std::string_view key, const kv::ChunkExtents& extents,
                             std::span<std::byte> bytes);

}  // namespace cairn::core::internal
