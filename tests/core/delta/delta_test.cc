// What the encoder writes, the decoder reads: for every element size, density and page length.

#include "core/codec/internal/delta.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstring>

#include "core/codec/internal/delta_encoder.h"
#include "tests/core/delta/delta_fixture.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_vector_target.h"
#include "tests/support/seeded_random.h"

namespace cairn::core::internal {
namespace {

using kv::kPageBytes;
using ::testing::ElementsAreArray;
using testing::IsError;
using ::testing::Lt;
using testing::SeededRandom;

void ExpectRoundTrip(uint32_t element_bytes, const Bytes& base, const Bytes& chunk) {
  const Bytes delta = Encode(element_bytes, base, chunk);
  EXPECT_LE(delta.size(), chunk.size() + chunk.size() / 100 + 512);
  CAIRN_ASSERT_OK_AND_ASSIGN(const Bytes decoded, Decode(delta, base));
  EXPECT_TRUE(decoded == chunk) << "elements of " << element_bytes << " bytes, chunk of "
                                << chunk.size();
}

template <typename T>
class DeltaElementTest : public ::testing::Test {
 protected:
  std::vector<T> RandomElements(size_t count) {
    std::vector<T> elements(count);
    random_.Fill(std::as_writable_bytes(std::span(elements)));
    return elements;
  }
  SeededRandom random_;
};
using ElementTypes = ::testing::Types<uint8_t, uint16_t, uint32_t, uint64_t>;
TYPED_TEST_SUITE(DeltaElementTest, ElementTypes);

TYPED_TEST(DeltaElementTest, DecodesWhatWasEncodedAtEveryDensity) {
  for (const double density : {0.0, 0.0001, 0.003, 0.015, 0.04, 0.1, 0.3, 0.6, 0.9, 1.0}) {
    const auto base = this->RandomElements(3 * kPageBytes / sizeof(TypeParam));
    const auto chunk = Changed(this->random_, base, density);
    ExpectRoundTrip(sizeof(TypeParam), ToBytes(base), ToBytes(chunk));
  }
}

TYPED_TEST(DeltaElementTest, DecodesChunksOfEveryLength) {
  const uint64_t per_page = kPageBytes / sizeof(TypeParam);
  for (const uint64_t count : {uint64_t{1}, uint64_t{2}, uint64_t{63}, uint64_t{64}, uint64_t{65},
                               per_page - 1, per_page, per_page + 1, 2 * per_page + 100}) {
    const auto base = this->RandomElements(count);
    const auto chunk = Changed(this->random_, base, 0.2);
    ExpectRoundTrip(sizeof(TypeParam), ToBytes(base), ToBytes(chunk));
  }
}

TYPED_TEST(DeltaElementTest, DecodesEveryDifferenceNearThoseThatNeedMoreBytes) {
  using T = TypeParam;
  std::vector<T> base;
  std::vector<T> chunk;
  for (const T start :
       {T{0}, T{100}, static_cast<T>(-1), static_cast<T>(T{1} << (8 * sizeof(T) - 1))}) {
    for (int difference = -300; difference <= 300; ++difference) {
      base.push_back(start);
      chunk.push_back(static_cast<T>(start + static_cast<T>(difference)));
    }
  }
  // Space them out, so that the page is not raw.
  std::vector<T> spaced_base(base.size() * 12, T{7});
  std::vector<T> spaced_chunk = spaced_base;
  for (size_t i = 0; i < base.size(); ++i) {
    spaced_base[i * 12] = base[i];
    spaced_chunk[i * 12] = chunk[i];
  }
  ExpectRoundTrip(sizeof(T), ToBytes(spaced_base), ToBytes(spaced_chunk));
  DeltaEncoder encoder;
  const Bytes delta = *Encode(encoder, sizeof(T), ToBytes(spaced_base), ToBytes(spaced_chunk));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Delta parsed,
                             Delta::Parse(delta, spaced_base.size() * sizeof(T)));
  for (uint64_t page = 0; page < parsed.page_count(); ++page) EXPECT_FALSE(parsed.IsRaw(page));
}

TYPED_TEST(DeltaElementTest, DecodesEveryGapNearThoseThatNeedMoreBytes) {
  for (const uint64_t gap : {0, 1, 253, 254, 255, 256, 509, 510, 511, 1000}) {
    std::vector<TypeParam> base(kPageBytes / sizeof(TypeParam), 200);
    auto chunk = base;
    for (uint64_t i = gap; i < chunk.size(); i += gap + 1) chunk[i] = 201;
    ExpectRoundTrip(sizeof(TypeParam), ToBytes(base), ToBytes(chunk));
  }
}

// Weights have many small elements, which are found by their size in the base.
TYPED_TEST(DeltaElementTest, EverySetOfInstructionsWritesAndReadsTheSame) {
  using T = TypeParam;
  for (const double density : {0.0, 0.01, 0.5}) {
    auto base = this->RandomElements(3 * kPageBytes / sizeof(T) / 2 + 77);
    if constexpr (sizeof(T) == 2) base = RandomWeights(this->random_, base.size());
    const Bytes before = ToBytes(base);
    const Bytes after = ToBytes(Changed(this->random_, base, density));
    const Bytes expected = Encode(sizeof(T), before, after);
    for (const int64_t target : testing::VectorTargets()) {
      SCOPED_TRACE(hwy::TargetName(target));
      const testing::ScopedVectorTarget scope(target);
      EXPECT_TRUE(Encode(sizeof(T), before, after) == expected);
      const auto decoded = Decode(expected, before);
      EXPECT_TRUE(decoded.has_value() && *decoded == after);
    }
  }
}

TEST(DeltaTest, HasNoPagesThatDidNotChange) {
  SeededRandom random;
  const Bytes base = RandomBytes(random, 5 * kPageBytes + 17);
  Bytes chunk = base;
  chunk[2 * kPageBytes + 5] ^= std::byte{1};
  const Bytes delta = Encode(1, base, chunk);
  CAIRN_ASSERT_OK_AND_ASSIGN(const Delta parsed, Delta::Parse(delta, chunk.size()));
  for (uint64_t page = 0; page < 6; ++page) {
    EXPECT_EQ(parsed.IsChanged(page), page == 2);
    EXPECT_FALSE(parsed.IsRaw(page));
  }
  EXPECT_THAT(delta.size(), Lt(250u));
}

TEST(DeltaTest, StoresPagesRawWhereADeltaDoesNotPayOff) {
  SeededRandom random;
  const Bytes base = RandomBytes(random, 4 * kPageBytes);
  Bytes chunk = base;
  random.Fill(std::span(chunk).subspan(kPageBytes, kPageBytes));
  chunk[3 * kPageBytes] ^= std::byte{1};
  const Bytes delta = Encode(2, base, chunk);
  CAIRN_ASSERT_OK_AND_ASSIGN(const Delta parsed, Delta::Parse(delta, chunk.size()));
  for (uint64_t page = 0; page < 4; ++page) {
    EXPECT_EQ(parsed.IsRaw(page), page == 1);
    EXPECT_EQ(parsed.IsChanged(page), page == 1 || page == 3);
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const Bytes decoded, Decode(delta, base));
  EXPECT_TRUE(decoded == chunk);
}

TEST(DeltaTest, IsShortIfAnOptimizerMovesWeights) {
  SeededRandom random;
  const auto base = RandomWeights(random, 1 << 20);
  auto chunk = base;
  // As an optimizer does: the smaller an element is, the more likely it changes.
  for (uint16_t& weight : chunk) {
    const int exponent = weight >> 7 & 0xff;
    const double likely = exponent <= 114 ? 1.0 : std::ldexp(1.0, 114 - exponent);
    if (random.Chance(likely))
      weight = static_cast<uint16_t>(weight + (random.Chance(0.5) ? 1 : -1));
  }
  const Bytes delta = Encode(2, ToBytes(base), ToBytes(chunk));
  EXPECT_THAT(delta.size(), Lt(2 * chunk.size() / 18));  // 5 % of the elements changed
  CAIRN_ASSERT_OK_AND_ASSIGN(const Bytes decoded, Decode(delta, ToBytes(base)));
  EXPECT_TRUE(decoded == ToBytes(chunk));
}

TEST(DeltaTest, HandlesElementsOf16BytesAndOddLengths) {
  SeededRandom random;
  for (const uint64_t length : {1, 15, 16, 4097, 3 * 65536 + 1}) {
    for (const uint32_t element_bytes : {0u, 2u, 3u, 8u, 16u}) {
      const Bytes base = RandomBytes(random, length);
      Bytes chunk = base;
      chunk[length / 2] ^= std::byte{0x11};
      ExpectRoundTrip(element_bytes, base, chunk);
    }
  }
}

TEST(DeltaTest, AcceptsAnEmptyChunk) { ExpectRoundTrip(4, {}, {}); }

TEST(DeltaTest, AcceptsPagesThatAreNotAligned) {
  SeededRandom random;
  const auto base = RandomWeights(random, kPageBytes / 2);
  const Bytes before = ToBytes(base);
  const Bytes after = ToBytes(Changed(random, base, 0.05));
  const Bytes expected = Encode(2, before, after);
  for (size_t shift = 1; shift < 64; shift += 6) {
    Bytes shifted_base(kPageBytes + 64);
    Bytes shifted_chunk(kPageBytes + 65);
    std::memcpy(shifted_base.data() + shift, before.data(), kPageBytes);
    std::memcpy(shifted_chunk.data() + shift + 1, after.data(), kPageBytes);
    DeltaEncoder encoder;
    encoder.Begin(2, kPageBytes);
    encoder.AddPage(std::span(shifted_base).subspan(shift, kPageBytes),
                    std::span(shifted_chunk).subspan(shift + 1, kPageBytes));
    const std::array<uint64_t, 1> digests = {kv::PageDigest(after)};
    EXPECT_THAT(*encoder.Finish(digests, kNoLimit), ElementsAreArray(expected));

    CAIRN_ASSERT_OK_AND_ASSIGN(const Delta delta, Delta::Parse(expected, kPageBytes));
    const auto target = std::span(shifted_base).subspan(shift, kPageBytes);
    CAIRN_ASSERT_OK(delta.Apply(0, target));
    EXPECT_EQ(std::memcmp(target.data(), after.data(), kPageBytes), 0);
  }
}

TEST(DeltaTest, ReportsThatItDoesNotBelongToAVersion) {
  SeededRandom random;
  auto base = RandomWeights(random, kPageBytes / 2);
  auto chunk = base;
  // All small weights change, so that the decoder finds them by their size in the version before.
  for (uint16_t& weight : chunk) {
    if ((weight >> 7 & 0xff) < 119) weight ^= 1;
  }
  const Bytes blob = Encode(2, ToBytes(base), ToBytes(chunk));
  for (uint16_t& weight : base) weight = 0;
  EXPECT_THAT(Decode(blob, ToBytes(base)), IsError(ErrorCode::kDataLoss, "earlier version"));
}

TEST(DeltaEncoderTest, ReturnsNothingBeyondTheLimit) {
  SeededRandom random;
  const auto base = RandomWeights(random, 4 * kPageBytes / 2);
  const Bytes chunk = ToBytes(Changed(random, base, 0.02));
  DeltaEncoder encoder;
  const uint64_t length = Encode(encoder, 2, ToBytes(base), chunk)->size();
  EXPECT_TRUE(Encode(encoder, 2, ToBytes(base), chunk, length).has_value());
  for (const uint64_t limit : {length - 1, length / 2, uint64_t{100}, uint64_t{0}}) {
    EXPECT_FALSE(Encode(encoder, 2, ToBytes(base), chunk, limit).has_value()) << limit;
  }
}

TEST(DeltaEncoderTest, IsReusable) {
  SeededRandom random;
  DeltaEncoder reused;
  for (int i = 0; i < 20; ++i) {
    const uint32_t element_bytes = 1u << random.Between(0, 3);
    const Bytes base = RandomBytes(random, random.Between(1, 3 * kPageBytes));
    Bytes chunk = base;
    for (uint64_t j = random.Between(0, 3000); j > 0; --j) {
      chunk[random.Between(0, chunk.size() - 1)] ^= std::byte{3};
    }
    EXPECT_EQ(*Encode(reused, element_bytes, base, chunk), Encode(element_bytes, base, chunk));
  }
}

TEST(DeltaEncoderTest, IsTooLongAfterSomePagesInWhichEverythingChanged) {
  SeededRandom random;
  constexpr uint64_t kPages = 64;
  const Bytes base = RandomBytes(random, kPages * kPageBytes);
  const Bytes chunk = RandomBytes(random, kPages * kPageBytes);
  DeltaEncoder encoder;
  encoder.Begin(4, chunk.size());
  uint64_t added = 0;
  while (!encoder.is_too_long(chunk.size() / 2)) {
    ASSERT_LT(added, kPages);
    encoder.AddPage(PageOf(base, added), PageOf(chunk, added));
    ++added;
  }
  EXPECT_EQ(added, 4u);
}

TEST(DeltaEncoderTest, StoresChangedRowsWithFewMoreBytes) {
  SeededRandom random;
  // 1 % of the rows of an embedding, 512 bytes each, have new values.
  Bytes base = RandomBytes(random, 64 * kPageBytes);
  Bytes chunk = base;
  uint64_t changed_bytes = 0;
  for (size_t row = 0; row + 512 <= chunk.size(); row += 512) {
    if (!random.Chance(0.01)) continue;
    random.Fill(std::span(chunk).subspan(row, 512));
    changed_bytes += 512;
  }
  for (const uint32_t element_bytes : {2u, 4u}) {
    EXPECT_LT(Encode(element_bytes, base, chunk).size(), changed_bytes * 13 / 10);
  }
}

}  // namespace
}  // namespace cairn::core::internal
