// A delta with wrong bytes is refused, or decodes to other bytes; it never does anything else.
// Build it with -fsanitize=address,undefined (preset asan) to see that no access is out of bounds.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zstd.h>

#include <set>
#include <utility>

#include "core/codec/internal/delta.h"
#include "schema/little_endian.h"
#include "tests/core/delta/delta_fixture.h"
#include "tests/support/result_matchers.h"
#include "tests/support/seeded_random.h"

namespace cairn::core::internal {
namespace {

using kv::kPageBytes;
using testing::IsError;
using testing::SeededRandom;

struct Sample {
  Bytes base;
  Bytes chunk;
  Bytes delta;
};

/// A chunk with an unchanged page, a raw one, one in planes, and pages with all kinds of gaps and
/// values.
template <typename T>
Sample MakeSample(SeededRandom& random) {
  constexpr uint64_t kPerPage = kPageBytes / sizeof(T);
  std::vector<T> base(4 * kPerPage + 100);
  for (T& element : base) element = static_cast<T>(random.Between(0, 3000));
  auto chunk = Changed(random, base, 0.02);
  std::copy_n(base.begin(), kPerPage, chunk.begin());
  random.Fill(std::as_writable_bytes(std::span(chunk)).subspan(2 * kPageBytes, kPageBytes));
  Sample sample{.base = ToBytes(base), .chunk = ToBytes(chunk)};
  DeltaEncoder encoder;
  encoder.Begin(sizeof(T), sample.chunk.size());
  std::vector<uint64_t> page_digests;
  kv::AppendPageDigests(sample.chunk, page_digests);
  for (uint64_t i = 0; i < page_digests.size(); ++i) {
    if (i == 3) {
      encoder.AddCompletePage(PageOf(sample.chunk, i));
    } else {
      encoder.AddPage(PageOf(sample.base, i), PageOf(sample.chunk, i));
    }
  }
  const auto delta = encoder.Finish(page_digests, kNoLimit);
  sample.delta = Bytes(delta->begin(), delta->end());
  return sample;
}

/// Decodes bytes that may be damaged. The vector is exactly as long as the bytes, so that the
/// sanitizer reports a read past their end.
void ExpectRefusedOrDecoded(Bytes delta, const Sample& sample) {
  delta.shrink_to_fit();
  const auto decoded = Decode(delta, sample.base);
  if (decoded) {
    EXPECT_EQ(decoded->size(), sample.base.size());
  } else {
    EXPECT_TRUE(decoded.error().code == ErrorCode::kDataLoss ||
                decoded.error().code == ErrorCode::kUnimplemented)
        << decoded.error().ToString();
  }
}

class DeltaDamageTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  Sample Make() {
    return WithElementType(GetParam(),
                           [&](auto zero) { return MakeSample<decltype(zero)>(random_); });
  }
  SeededRandom random_;
};
INSTANTIATE_TEST_SUITE_P(ElementBytes, DeltaDamageTest, ::testing::Values(1u, 2u, 4u, 8u));

TEST_P(DeltaDamageTest, RefusesEveryTruncation) {
  const Sample sample = Make();
  const Bytes& delta = sample.delta;
  // All lengths up to the streams, then a random one out of each interval.
  for (size_t length = 0; length < delta.size();
       length += length < 1000 ? 1 : random_.Between(1, 200)) {
    const Bytes part(delta.begin(), delta.begin() + static_cast<ptrdiff_t>(length));
    EXPECT_THAT(Delta::Parse(part, sample.base.size()), IsError(ErrorCode::kDataLoss, "delta"))
        << length;
  }
}

TEST_P(DeltaDamageTest, RefusesBytesAfterTheEnd) {
  Sample sample = Make();
  sample.delta.push_back(std::byte{0});
  EXPECT_THAT(Delta::Parse(sample.delta, sample.base.size()),
              IsError(ErrorCode::kDataLoss, "delta"));
}

TEST_P(DeltaDamageTest, RefusesOrDecodesEveryByteFlipOfTheHeader) {
  const Sample sample = Make();
  const size_t end = DeltaStreamsOffset(kv::PageCount(sample.base.size()), GetParam()) + 40;
  for (size_t i = 0; i < end; ++i) {
    for (const int mask : {1, 0x80, 0xff}) {
      Bytes damaged = sample.delta;
      damaged[i] ^= static_cast<std::byte>(mask);
      ExpectRefusedOrDecoded(std::move(damaged), sample);
    }
  }
}

TEST_P(DeltaDamageTest, RefusesOrDecodesRandomByteFlips) {
  const Sample sample = Make();
  for (int i = 0; i < 1500; ++i) {
    Bytes damaged = sample.delta;
    for (uint64_t flips = random_.Between(1, 4); flips > 0; --flips) {
      damaged[random_.Between(0, damaged.size() - 1)] ^=
          static_cast<std::byte>(random_.Between(1, 255));
    }
    ExpectRefusedOrDecoded(std::move(damaged), sample);
  }
}

/// Returns the streams of a delta, decompressed.
std::vector<Bytes> StreamsOf(const Bytes& delta, uint64_t page_count, uint32_t element_bytes) {
  std::vector<Bytes> streams;
  std::span<const std::byte> rest =
      std::span(delta).subspan(DeltaStreamsOffset(page_count, element_bytes));
  for (size_t i = 0; i < DeltaStreamCount(element_bytes); ++i) {
    const size_t entry = DeltaDirectoryOffset(page_count) + kStreamEntryBytes * i;
    Bytes stream(schema::GetLittleEndian<uint32_t>(delta, entry));
    const auto stored = rest.first(schema::GetLittleEndian<uint32_t>(delta, entry + 4));
    if (stored.size() == stream.size()) {
      std::ranges::copy(stored, stream.begin());
    } else {
      EXPECT_EQ(ZSTD_decompress(stream.data(), stream.size(), stored.data(), stored.size()),
                stream.size());
    }
    streams.push_back(std::move(stream));
    rest = rest.subspan(stored.size());
  }
  return streams;
}

/// Returns the delta with these streams, stored without compression.
Bytes WithStreams(const Bytes& delta, const std::vector<Bytes>& streams, uint64_t page_count,
                  uint32_t element_bytes) {
  const auto header = static_cast<ptrdiff_t>(DeltaStreamsOffset(page_count, element_bytes));
  Bytes plain(delta.begin(), delta.begin() + header);
  for (size_t i = 0; i < streams.size(); ++i) {
    const size_t entry = DeltaDirectoryOffset(page_count) + kStreamEntryBytes * i;
    const auto length = static_cast<uint32_t>(streams[i].size());
    schema::PutLittleEndian(std::span(plain), entry, length);
    schema::PutLittleEndian(std::span(plain), entry + 4, length);
    plain.insert(plain.end(), streams[i].begin(), streams[i].end());
  }
  return plain;
}

// Without compression, wrong bytes reach the decoder instead of being refused by zstd.
TEST_P(DeltaDamageTest, RefusesOrDecodesWrongBytesInEveryStream) {
  const Sample sample = Make();
  const uint64_t page_count = kv::PageCount(sample.base.size());
  const auto streams = StreamsOf(sample.delta, page_count, GetParam());
  const Bytes plain = WithStreams(sample.delta, streams, page_count, GetParam());
  CAIRN_ASSERT_OK_AND_ASSIGN(const Bytes decoded, Decode(plain, sample.base));
  EXPECT_TRUE(decoded == sample.chunk);
  for (size_t damaged = 0; damaged < streams.size(); ++damaged) {
    if (streams[damaged].empty()) continue;
    for (int i = 0; i < 200; ++i) {
      auto wrong = streams;
      for (uint64_t flips = random_.Between(1, 3); flips > 0; --flips) {
        wrong[damaged][random_.Between(0, wrong[damaged].size() - 1)] =
            static_cast<std::byte>(random_.Chance(0.3) ? 255 : random_.Between(0, 255));
      }
      if (random_.Chance(0.2)) wrong[damaged].resize(random_.Between(0, wrong[damaged].size()));
      ExpectRefusedOrDecoded(WithStreams(sample.delta, wrong, page_count, GetParam()), sample);
    }
  }
}

TEST(DeltaStreamTest, RefusesEveryStreamThatIsTooShortOrTooLong) {
  for (const uint16_t large_difference : {50, 1000}) {  // in a byte, and in the planes
    std::vector<uint16_t> base(100, 7);
    std::vector<uint16_t> chunk = base;
    ++chunk[20];
    chunk[60] += large_difference;
    const Bytes delta = Encode(2, ToBytes(base), ToBytes(chunk));
    const auto streams = StreamsOf(delta, 1, 2);
    for (size_t i = 0; i < streams.size(); ++i) {
      std::set<size_t> lengths = {0, streams[i].size() + 1};
      if (!streams[i].empty()) lengths.insert(streams[i].size() - 1);
      lengths.erase(streams[i].size());
      for (const size_t length : lengths) {
        auto wrong = streams;
        wrong[i].resize(length);
        EXPECT_THAT(Delta::Parse(WithStreams(delta, wrong, 1, 2), 200),
                    IsError(ErrorCode::kDataLoss, "delta"))
            << "stream " << i << " with " << length << " bytes";
      }
    }
  }
}

TEST(DeltaStreamTest, RefusesDenseElementsWithoutAThreshold) {
  std::vector<uint16_t> base(100, 7);
  std::vector<uint16_t> chunk = base;
  ++chunk[20];
  const Bytes delta = Encode(2, ToBytes(base), ToBytes(chunk));
  auto streams = StreamsOf(delta, 1, 2);
  streams[0][3] = std::byte{1};
  streams[3].resize(1);
  EXPECT_THAT(Delta::Parse(WithStreams(delta, streams, 1, 2), 200),
              IsError(ErrorCode::kDataLoss, "threshold"));
}

TEST(DeltaStreamTest, RefusesAStreamThatCannotBeDecompressed) {
  const std::vector<uint16_t> base(1000, 7);
  std::vector<uint16_t> chunk = base;
  for (size_t i = 0; i < chunk.size(); i += 5) ++chunk[i];
  Bytes delta = Encode(2, ToBytes(base), ToBytes(chunk));
  const size_t entry = DeltaDirectoryOffset(1) + kStreamEntryBytes;  // of the gaps
  ASSERT_LT(schema::GetLittleEndian<uint32_t>(delta, entry + 4),
            schema::GetLittleEndian<uint32_t>(delta, entry));
  delta[DeltaStreamsOffset(1, 2) + kDeltaPageBytes] ^= std::byte{1};  // zstd's magic number
  EXPECT_THAT(Delta::Parse(delta, 2000), IsError(ErrorCode::kDataLoss, "cannot be decompressed"));
}

// A base whose elements are dense in other places, and in another number.
TEST_P(DeltaDamageTest, RefusesOrDecodesRelativeToAnotherBase) {
  const Sample sample = Make();
  for (int i = 0; i < 50; ++i) {
    Sample other = sample;
    random_.Fill(std::span(other.base).subspan(random_.Between(0, other.base.size())));
    ExpectRefusedOrDecoded(sample.delta, other);
  }
}

TEST(DeltaMemoryTest, RefusesStreamsThatAreLongerThanTheChunk) {
  SeededRandom random;
  const Sample sample = MakeSample<uint16_t>(random);
  const uint64_t page_count = kv::PageCount(sample.base.size());
  for (uint32_t i = 0; i < DeltaStreamCount(2); ++i) {
    Bytes damaged = sample.delta;
    const size_t entry = DeltaDirectoryOffset(page_count) + kStreamEntryBytes * i;
    schema::PutLittleEndian(std::span(damaged), entry, uint32_t{0xffffffff});
    EXPECT_THAT(Delta::Parse(damaged, sample.base.size()),
                IsError(ErrorCode::kDataLoss, "longer than the chunk"));
  }
}

TEST(DeltaMemoryTest, RefusesAnotherChunkLength) {
  SeededRandom random;
  const Sample sample = MakeSample<uint16_t>(random);
  for (const uint64_t length : {uint64_t{0}, uint64_t{1}, sample.base.size() - 2,
                                sample.base.size() + 2, uint64_t{1} << 40}) {
    EXPECT_THAT(Delta::Parse(sample.delta, length), IsError(ErrorCode::kDataLoss, "chunk"));
  }
}

TEST(DeltaMemoryTest, RefusesANewerVersion) {
  SeededRandom random;
  Sample sample = MakeSample<uint16_t>(random);
  sample.delta[4] = std::byte{kDeltaVersion + 1};
  EXPECT_THAT(Delta::Parse(sample.delta, sample.base.size()),
              IsError(ErrorCode::kUnimplemented, "version 2"));
}

}  // namespace
}  // namespace cairn::core::internal
