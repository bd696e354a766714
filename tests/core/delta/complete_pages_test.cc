// Chunks of complete pages, whose byte planes are stored in the way that a sample suggests.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/codec/internal/delta_format.h"
#include "core/step/internal/compress.h"
#include "schema/little_endian.h"
#include "tests/core/delta/delta_fixture.h"
#include "tests/support/result_matchers.h"
#include "tests/support/seeded_random.h"

namespace cairn::core::internal {
namespace {

using kv::kPageBytes;
using ::testing::ElementsAre;
using ::testing::Lt;
using testing::SeededRandom;

std::vector<uint64_t> DigestsOf(const Bytes& chunk) {
  std::vector<uint64_t> digests;
  kv::AppendPageDigests(chunk, digests);
  return digests;
}

/// Returns the compressed chunk, which is decoded and compared; empty if it does not get shorter.
Bytes CompressAndCompare(uint32_t element_bytes, const Bytes& chunk) {
  const std::vector<uint64_t> digests = DigestsOf(chunk);
  auto compressed = CompressBytes(chunk, element_bytes, digests);
  if (!compressed) return {};
  const auto delta = Delta::Parse(*compressed, chunk.size());
  CAIRN_EXPECT_OK(delta);
  EXPECT_TRUE(std::ranges::equal(delta->page_digests(), digests));
  Bytes decoded(chunk.size());
  for (uint64_t page = 0; page < delta->page_count(); ++page) {
    const auto target = std::span(decoded).subspan(page * kPageBytes, PageOf(chunk, page).size());
    CAIRN_EXPECT_OK(delta->Apply(page, target));
  }
  EXPECT_TRUE(decoded == chunk);
  return *std::move(compressed);
}

/// Returns the stored lengths of the planes in percent of their lengths, rounded down.
std::vector<uint64_t> StoredPercent(const Bytes& compressed, uint64_t chunk_bytes) {
  std::vector<uint64_t> percent;
  for (uint32_t plane = 0; plane < static_cast<uint8_t>(compressed[5]); ++plane) {
    const uint64_t entry = DeltaDirectoryOffset(kv::PageCount(chunk_bytes)) +
                           kStreamEntryBytes * (kFixedStreamCount + plane);
    const uint64_t length = schema::GetLittleEndian<uint32_t>(compressed, entry);
    percent.push_back(schema::GetLittleEndian<uint32_t>(compressed, entry + 4) * 100 / length);
  }
  return percent;
}

/// Returns floats with random mantissas and signs, whose exponents have about two bits.
Bytes Weights(SeededRandom& random, size_t count) {
  std::vector<uint32_t> elements(count);
  random.Fill(std::as_writable_bytes(std::span(elements)));
  for (uint32_t& element : elements) {
    const uint32_t exponent = 120 - std::countr_zero((element & 0xff) | 0x80);
    element = (element & 0x807fffff) | exponent << 23;
  }
  return ToBytes(elements);
}

TEST(CompletePagesTest, RandomPlanesAreStoredAsTheyAre) {
  SeededRandom random;
  const Bytes chunk = Weights(random, 5 * kPageBytes / 4 + 111);
  const auto percent = StoredPercent(CompressAndCompare(4, chunk), chunk.size());
  ASSERT_EQ(percent.size(), 4u);
  // The exponent depends on the lowest byte of the mantissa, which is random by itself.
  EXPECT_THAT(std::span(percent).first(3), ElementsAre(100, 100, 100));
  EXPECT_THAT(percent[3], Lt(30u));
}

TEST(CompletePagesTest, MatchesAreUsedWhereTheySaveMore) {
  std::vector<uint64_t> positions(3 * kPageBytes / 8);
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = i % 256;
  // The lowest plane has all bytes equally often, so that only matches shorten it.
  EXPECT_THAT(CompressAndCompare(8, ToBytes(positions)).size(), Lt(4096u));
}

TEST(CompletePagesTest, RandomBytesAreNotCompressed) {
  SeededRandom random;
  for (const uint32_t element_bytes : {1u, 2u, 4u, 8u, 16u}) {
    EXPECT_TRUE(CompressAndCompare(element_bytes, RandomBytes(random, 3 * kPageBytes)).empty());
  }
}

TEST(CompletePagesTest, AnEncoderForgetsTheCodingsOfTheChunkBefore) {
  SeededRandom random;
  const Bytes weights = Weights(random, 2 * kPageBytes / 4);
  DeltaEncoder encoder;
  encoder.Begin(4, weights.size());
  for (uint64_t page = 0; page < 2; ++page) encoder.AddCompletePage(PageOf(weights, page));
  const PlaneCodings codings = encoder.ChoosePlaneCodings();
  EXPECT_EQ(codings.planes[0], PlaneCodings::Coding::kRaw);

  const Bytes zeros(2 * kPageBytes);
  encoder.Begin(4, zeros.size());
  encoder.SetPlaneCodings(codings);
  encoder.Begin(4, zeros.size());
  for (uint64_t page = 0; page < 2; ++page) encoder.AddCompletePage(PageOf(zeros, page));
  const auto finished = encoder.Finish(DigestsOf(zeros), kNoLimit);
  ASSERT_TRUE(finished);
  EXPECT_THAT(finished->size(), Lt(1024u));
}

TEST(CompletePagesTest, EveryElementSizeAndLengthIsDecoded) {
  SeededRandom random;
  for (const uint32_t element_bytes : {1u, 2u, 4u, 8u, 16u}) {
    for (const size_t bytes : {4096u, 4104u, 65536u, 65544u, 200000u, 262144u, 262147u}) {
      Bytes chunk = RandomBytes(random, bytes);
      for (std::byte& byte : chunk) byte &= std::byte{0x83};
      EXPECT_FALSE(CompressAndCompare(element_bytes, chunk).empty()) << element_bytes << bytes;
    }
  }
}

}  // namespace
}  // namespace cairn::core::internal
