#pragma once
/// The chunks that a save tries to write as deltas, and how long a delta may be.

#include <cstdint>

namespace cairn::core::internal {

/// Chunks that are longer have no deltas: their base would have to be in memory.
inline constexpr uint64_t kMaxComparedBytes = 16 << 20;
/// Of a tensor of which a chunk was tried in vain, only every N-th chunk is tried.
inline constexpr uint32_t kDeltaTryInterval = 16;

/// Returns the longest delta of a chunk that pays off, if pages of `changed_bytes` have changed.
constexpr uint64_t MaxDeltaBytes(uint64_t chunk_bytes, uint64_t changed_bytes) {
  return (chunk_bytes < changed_bytes ? chunk_bytes : changed_bytes) / 2;
}

}  // namespace cairn::core::internal
