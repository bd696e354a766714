#pragma once
/// The page-tree digest: 64 KiB pages, XXH3-64 leaves, XXH3-128 root.
///
/// leaf[i] = XXH3-64(page i), seed 0; the last page may be short.
/// root    = XXH3-128(leaf[0] .. leaf[n-1] as little-endian u64, then the length as little-endian
/// u64). XXH3 is specified at https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md.
/// Threads: all functions here are pure.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kv/div.h"

namespace cairn::kv {

inline constexpr uint64_t kPageBytes = 64 * 1024;

struct Digest {
  uint64_t lo = 0;
  uint64_t hi = 0;
  friend bool operator==(const Digest&, const Digest&) = default;
  /// 32 hexadecimal digits, high half first, as `xxhsum -H2` prints XXH3-128.
  std::string ToHex() const;
};

/// Pages of a payload of `length_bytes`; 0 for an empty one.
constexpr uint64_t PageCount(uint64_t length_bytes) {
  return DivCeil(length_bytes, kPageBytes);
}

/// Requires `page.size() <= kPageBytes`.
uint64_t PageDigest(std::span<const std::byte> page);
/// Appends the leaves of `payload` to `leaves`.
void AppendPageDigests(std::span<const std::byte> payload, std::vector<uint64_t>& page_digests);
Digest RootDigest(std::span<const uint64_t> page_digests, uint64_t length_bytes);
/// Of a payload that lies in one piece: the root over its leaves.
Digest PayloadDigest(std::span<const std::byte> payload);

/// Plain XXH3-64 of any bytes: headers, footers, manifest blocks.
uint64_t Checksum64(std::span<const std::byte> bytes);

}  // namespace cairn::kv
