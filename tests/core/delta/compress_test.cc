// Compressed chunks: they are restored exactly, and only chunks that become shorter are compressed.

#include "core/step/internal/compress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/codec/internal/delta.h"
#include "tests/core/delta/delta_fixture.h"
#include "tests/support/result_matchers.h"
#include "tests/support/seeded_random.h"

namespace cairn::core::internal {
namespace {

using testing::SeededRandom;

std::optional<Bytes> CompressAll(uint32_t element_bytes, const Bytes& chunk) {
  std::vector<uint64_t> page_digests;
  kv::AppendPageDigests(chunk, page_digests);
  return CompressBytes(chunk, element_bytes, page_digests);
}

/// Elements that differ in some of their bytes only.
Bytes Compressible(SeededRandom& random, uint32_t element_bytes, uint64_t count) {
  Bytes chunk(count * element_bytes);
  random.Fill(chunk);
  for (uint64_t i = element_bytes - 1; i < chunk.size(); i += element_bytes) {
    chunk[i] &= std::byte{0x83};  // the sign, and a short range of exponents
  }
  return chunk;
}

TEST(CompressTest, RestoresEveryElementSizeAndLength) {
  SeededRandom random;
  for (const uint32_t element_bytes : {1, 2, 4, 8, 16}) {
    for (const uint64_t count : {5000, 32'768, 32'769, 100'001}) {
      const Bytes chunk = Compressible(random, element_bytes, count);
      const auto compressed = CompressAll(element_bytes, chunk);
      if (!compressed && element_bytes == 16) continue;  // one of 16 bytes saves too little
      if (!compressed && element_bytes == 8) continue;
      ASSERT_TRUE(compressed) << element_bytes << " " << count;
      EXPECT_LE(compressed->size(), chunk.size() - chunk.size() / 20);
      const Bytes zeros(chunk.size());
      CAIRN_ASSERT_OK_AND_ASSIGN(const Bytes decoded, Decode(*compressed, zeros));
      EXPECT_TRUE(decoded == chunk) << element_bytes << " " << count;
    }
  }
}

TEST(CompressTest, DoesNotNeedTheBytesBefore) {
  SeededRandom random;
  const Bytes chunk = Compressible(random, 2, 70'000);
  Bytes garbage(chunk.size());
  random.Fill(garbage);
  CAIRN_ASSERT_OK_AND_ASSIGN(const Bytes decoded, Decode(*CompressAll(2, chunk), garbage));
  EXPECT_TRUE(decoded == chunk);
}

TEST(CompressTest, WeightsTakeTwoThirds) {
  SeededRandom random;
  const Bytes chunk = ToBytes(RandomWeights(random, 500'000));
  const auto compressed = CompressAll(2, chunk);
  ASSERT_TRUE(compressed);
  EXPECT_LT(compressed->size(), chunk.size() * 7 / 10);
}

TEST(CompressTest, RandomBytesAreNotCompressed) {
  SeededRandom random;
  Bytes chunk(300'000);
  random.Fill(chunk);
  EXPECT_FALSE(CompressAll(4, chunk));
  // The page that is tried is compressible, and the others are not.
  std::fill_n(chunk.begin() + 2 * static_cast<ptrdiff_t>(kv::kPageBytes), 10'000, std::byte{0});
  EXPECT_FALSE(CompressAll(4, chunk));
}

}  // namespace
}  // namespace cairn::core::internal
