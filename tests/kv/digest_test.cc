// Compares page-tree digests with direct calls of XXH3 and with published values.

#include "kv/base/digest.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>

#include "kv/io/internal/file.h"
#include "tests/kv/sample_step.h"

namespace cairn::kv {
namespace {

using internal::AsBytes;
using testing::RandomBytes;

Digest TreeOf(std::span<const std::byte> payload) {
  std::vector<uint64_t> page_digests;
  AppendPageDigests(payload, page_digests);
  return RootDigest(page_digests, payload.size());
}

TEST(DigestTest, ChecksumsArePlainXxh3) {
  // XXH3-64 of nothing and of "a", as `xxhsum -H3` prints them.
  EXPECT_EQ(Checksum64({}), 0x2d06800538d394c2u);
  EXPECT_EQ(Checksum64(AsBytes("a")), 0xe6c632b61e964e1fu);
  EXPECT_EQ(PageDigest(AsBytes("a")), 0xe6c632b61e964e1fu);
}

TEST(DigestTest, HexIsHighHalfFirst) {
  EXPECT_EQ((Digest{.lo = 0x1, .hi = 0xabc}).ToHex(), "0000000000000abc0000000000000001");
}

TEST(DigestTest, PageCountRoundsUp) {
  EXPECT_EQ(PageCount(0), 0u);
  EXPECT_EQ(PageCount(1), 1u);
  EXPECT_EQ(PageCount(kPageBytes), 1u);
  EXPECT_EQ(PageCount(kPageBytes + 1), 2u);
  EXPECT_EQ(PageCount(~uint64_t{0}), (uint64_t{1} << 48));
}

TEST(DigestTest, DigestIsXxh3OfPageDigestsAndLength) {
  for (const uint64_t length_bytes :
       {uint64_t{0}, uint64_t{1}, uint64_t{240}, uint64_t{241}, kPageBytes - 1, kPageBytes,
        kPageBytes + 1, 5 * kPageBytes, 5 * kPageBytes + 123}) {
    const std::vector<std::byte> payload = RandomBytes(length_bytes + 1, length_bytes);
    // Computes the digest by its definition, in one buffer.
    std::vector<uint64_t> words;
    for (uint64_t at = 0; at < length_bytes; at += kPageBytes) {
      words.push_back(XXH3_64bits(payload.data() + at, std::min(kPageBytes, length_bytes - at)));
    }
    words.push_back(length_bytes);
    const XXH128_hash_t expected = XXH3_128bits(words.data(), 8 * words.size());
    EXPECT_EQ(TreeOf(payload), (Digest{.lo = expected.low64, .hi = expected.high64}))
        << length_bytes;
    EXPECT_EQ(PayloadDigest(payload), TreeOf(payload)) << length_bytes;
  }
}

TEST(DigestTest, EqualsValuesComputedByAnotherProgram) {
  // Python with ctypes over libxxhash, following docs/format/: XXH3-128 of the page digests
  // and the length.
  EXPECT_EQ(TreeOf({}).ToHex(), "2c0a8a99dc147d5445c3b49d035665b2");
  std::vector<std::byte> payload(100'000);
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i & 0xff);
  EXPECT_EQ(TreeOf(payload).ToHex(), "fa2352bad2cdc1d62e096b521a9f7b55");
}

}  // namespace
}  // namespace cairn::kv
