#pragma once
/// Compresses chunks: as deltas of zeros, whose pages are all complete (docs/format/delta.md).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "core/codec/internal/delta_encoder.h"

namespace cairn::core::internal {

/// Chunks of other lengths are not compressed. At most this is decoded to read any of their pages.
inline constexpr uint64_t kMinCompressibleBytes = 4096;
inline constexpr uint64_t kMaxCompressibleBytes = 64 << 20;

/// Returns page `page` of the chunk, which is valid until the next call.
using PageSource = std::function<std::span<const std::byte>(uint64_t page)>;

/// Sets `compressed` to the chunk as a delta of zeros. Returns false if the chunk does not become
/// shorter by at least a 20th; two pages in the middle are tried first. `page_digests` are the
/// chunk's. Requires a length within the limits above. The memory of `compressed` is used again.
bool Compress(DeltaEncoder& encoder, uint32_t element_bytes, uint64_t chunk_bytes,
              const PageSource& pages, std::span<const uint64_t> page_digests,
              std::vector<std::byte>& compressed);

/// Compresses a chunk in memory; see kv::CompressCallback.
std::optional<std::vector<std::byte>> CompressBytes(std::span<const std::byte> bytes,
                                                    uint32_t element_bytes,
                                                    std::span<const uint64_t> page_digests);

}  // namespace cairn::core::internal
