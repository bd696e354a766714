#pragma once
// SPDX-License-Identifier: Apache-2.0
/// The digest of a payload: a hash of the hashes of its pages.
///
///   page_digest[i] = XXH3-64(page i), seed 0; the last page may be short
///   digest         = XXH3-128(page_digest[0] ... page_digest[n-1], length), seed 0; all of them as
///                    little-endian u64
///
/// XXH3 is specified at https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md.
/// Threads: all functions here are pure.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kv/base/div.h"

struct XXH3_state_s;

namespace cairn::kv {

/// log2 of the length of a page: of everything that this version writes, and of any chunk.
inline constexpr uint8_t kPageBits = 16;
inline constexpr uint8_t kMinPageBits = 12;
inline constexpr uint8_t kMaxPageBits = 20;
inline constexpr uint64_t kPageBytes = uint64_t{1} << kPageBits;
inline constexpr uint64_t kMaxPageBytes = uint64_t{1} << kMaxPageBits;

struct Digest {
  uint64_t lo = 0;
  uint64_t hi = 0;
  friend bool operator==(const Digest&, const Digest&) = default;
  /// 32 hexadecimal digits, high half first, as `xxhsum -H2` prints XXH3-128.
  std::string ToHex() const;
};

/// The only kind of digests that this build knows (docs/format/digest.md).
inline constexpr uint8_t kXxh3 = 1;

/// Returns the number of pages of a payload of `length_bytes`; 0 if it is empty.
constexpr uint64_t PageCount(uint64_t length_bytes, uint64_t page_bytes = kPageBytes) {
  return DivCeil(length_bytes, page_bytes);
}

/// Requires `page.size() <= kMaxPageBytes`.
uint64_t PageDigest(std::span<const std::byte> page);
/// Appends the digests of the pages of `payload` to `page_digests`.
void AppendPageDigests(std::span<const std::byte> payload, std::vector<uint64_t>& page_digests,
                       uint64_t page_bytes = kPageBytes);
/// Combines the digests of all pages of a payload of `length_bytes`. Requires as many as it has
/// pages.
Digest RootDigest(std::span<const uint64_t> page_digests, uint64_t length_bytes);
/// Returns the digest of a payload that is contiguous in memory.
Digest PayloadDigest(std::span<const std::byte> payload, uint64_t page_bytes = kPageBytes);

/// Returns the XXH3-64 of `bytes`, without pages: for headers, footers and complete objects.
uint64_t Checksum64(std::span<const std::byte> bytes);
/// Returns the XXH3-128 of `bytes`, without pages.
Digest Checksum128(std::span<const std::byte> bytes);

/// Checksum64 of bytes that come in pieces. Threads: one.
class StreamChecksum64 {
 public:
  StreamChecksum64();
  ~StreamChecksum64();

  void Update(std::span<const std::byte> bytes);
  /// Returns Checksum64 of all bytes so far.
  uint64_t value() const;

 private:
  struct FreeState {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, FreeState> state_;
};

}  // namespace cairn::kv
