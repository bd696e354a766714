// Segment headers, trailers, footers and records: decoding returns what was encoded, and
// refuses damage, of one kind per test.

#include <cairn_schema/chunk_generated.h>
#include <cairn_schema/segment_footer_generated.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <utility>

#include "kv/base/step_info.h"
#include "kv/root/internal/kv_records.h"
#include "kv/segment/internal/segment_format.h"
#include "schema/little_endian.h"
#include "tests/kv/encode_footer.h"
#include "tests/kv/sample_step.h"
#include "tests/support/result_matchers.h"

namespace cairn::kv::internal {
namespace {

using cairn::testing::IsError;
using schema::PutLittleEndian;
using testing::RandomBytes;

Uuid TestUuid() {
  Uuid uuid;
  for (size_t i = 0; i < uuid.size(); ++i) uuid[i] = static_cast<std::byte>(i + 1);
  return uuid;
}

// --- segments

class SegmentFormatTest : public ::testing::Test {
 protected:
  const SegmentHeader header_{.store_uuid = TestUuid(),
                              .segment_id = 0x1122334455667788,
                              .step = 9,
                              .rank = 2,
                              .epoch = 77,
                              .created_unix_ns = -5};
  static constexpr uint64_t kFileBytes = 40'960;
  const SegmentTrailer trailer_{.segment_id = 0x1122334455667788,
                                .payload_end_bytes = 20'000,
                                .page_digests_offset_bytes = 20'480,
                                .page_digest_count = 3,
                                .footer_bytes = 500,
                                .page_digests_checksum = 11,
                                .footer_digest = 12};
};

TEST_F(SegmentFormatTest, HeaderIsDecodedAndEveryFlippedByteIsRefused) {
  std::array<std::byte, kSegmentHeaderBytes> bytes;
  EncodeSegmentHeader(header_, bytes);
  CAIRN_ASSERT_OK_AND_ASSIGN(const SegmentHeader found, DecodeSegmentHeader(bytes));
  EXPECT_EQ(found.store_uuid, header_.store_uuid);
  EXPECT_EQ(found.segment_id, header_.segment_id);
  EXPECT_EQ(found.step, 9u);
  EXPECT_EQ(found.rank, 2u);
  EXPECT_EQ(found.epoch, 77u);
  EXPECT_EQ(found.created_unix_ns, -5);
  for (size_t at = 0; at < bytes.size(); ++at) {
    bytes[at] ^= std::byte{0x40};
    ASSERT_THAT(DecodeSegmentHeader(bytes), IsError(ErrorCode::kDataLoss, "header")) << at;
    bytes[at] ^= std::byte{0x40};
  }
}

TEST_F(SegmentFormatTest, NewerHeaderIsUnimplementedNotDamaged) {
  std::array<std::byte, kSegmentHeaderBytes> bytes;
  EncodeSegmentHeader(header_, bytes);
  PutLittleEndian<uint32_t>(bytes, 8, kSegmentVersion + 1);
  PutLittleEndian(bytes, bytes.size() - 8, Checksum64(std::span(bytes).first(bytes.size() - 8)));
  EXPECT_THAT(DecodeSegmentHeader(bytes), IsError(ErrorCode::kUnimplemented, "version 4"));
}

TEST_F(SegmentFormatTest, TrailerIsDecodedAndEveryFlippedByteIsRefused) {
  std::array<std::byte, kSegmentTrailerBytes> bytes;
  EncodeSegmentTrailer(trailer_, bytes);
  CAIRN_ASSERT_OK_AND_ASSIGN(const SegmentTrailer found, DecodeSegmentTrailer(bytes, kFileBytes));
  EXPECT_EQ(found.segment_id, trailer_.segment_id);
  EXPECT_EQ(found.payload_end_bytes, trailer_.payload_end_bytes);
  EXPECT_EQ(found.page_digests_offset_bytes, trailer_.page_digests_offset_bytes);
  EXPECT_EQ(found.page_digest_count, trailer_.page_digest_count);
  EXPECT_EQ(found.footer_bytes, trailer_.footer_bytes);
  EXPECT_EQ(found.page_digests_checksum, trailer_.page_digests_checksum);
  EXPECT_EQ(found.footer_digest, trailer_.footer_digest);
  for (size_t at = 0; at < bytes.size(); ++at) {
    bytes[at] ^= std::byte{0x40};
    ASSERT_THAT(DecodeSegmentTrailer(bytes, kFileBytes), IsError(ErrorCode::kDataLoss, "trailer"))
        << at;
    bytes[at] ^= std::byte{0x40};
  }
}

TEST_F(SegmentFormatTest, TrailerWhosePartsDoNotFitTheFileIsRefused) {
  const auto decode = [](const SegmentTrailer& trailer) {
    std::array<std::byte, kSegmentTrailerBytes> bytes;
    EncodeSegmentTrailer(trailer, bytes);
    return DecodeSegmentTrailer(bytes, kFileBytes);
  };
  CAIRN_EXPECT_OK(decode(trailer_));
  const std::pair<uint64_t SegmentTrailer::*, uint64_t> changes[] = {
      {&SegmentTrailer::payload_end_bytes, kSegmentHeaderBytes - 1},
      {&SegmentTrailer::payload_end_bytes, trailer_.page_digests_offset_bytes + 1},
      {&SegmentTrailer::page_digests_offset_bytes, ~uint64_t{0}},
      {&SegmentTrailer::page_digest_count, (~uint64_t{0} / 8) + 2},  // wraps when multiplied
      {&SegmentTrailer::footer_bytes, kFileBytes}};
  for (const auto& [field, value] : changes) {
    SegmentTrailer hostile = trailer_;
    hostile.*field = value;
    EXPECT_THAT(decode(hostile), IsError(ErrorCode::kDataLoss, "")) << value;
  }
}

TEST_F(SegmentFormatTest, FooterIsDecoded) {
  const std::vector<FooterEntry> entries = {
      {.column = Column::kTensors, .key = FqnKey("w"), .value = RandomBytes(1, 33)},
      {.column = Column::kChunks,
       .key = ChunkKey("w", std::vector<uint64_t>{0}),
       .value = RandomBytes(2, 9)}};
  const std::vector<std::byte> bytes = EncodeFooter(header_, "attempt", entries);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto found, DecodeSegmentFooter(bytes, header_.segment_id));
  ASSERT_EQ(found.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(found[i].column, entries[i].column);
    EXPECT_EQ(found[i].key, entries[i].key);
    EXPECT_EQ(found[i].value, entries[i].value);
  }
  EXPECT_THAT(DecodeSegmentFooter(bytes, 5), IsError(ErrorCode::kDataLoss, "another segment"));
  // Truncated or changed FlatBuffers may be decoded, but must not crash. Other tests cover their
  // checksum.
  for (size_t size = 0; size < bytes.size(); ++size) {
    (void)DecodeSegmentFooter(std::span(bytes).first(size), header_.segment_id);
  }
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::vector<std::byte> garbled = bytes;
    garbled[at] ^= std::byte{0xff};
    (void)DecodeSegmentFooter(garbled, header_.segment_id);
  }
}

TEST_F(SegmentFormatTest, FooterOfManyPiecesIsDecoded) {
  std::vector<FooterEntry> entries;
  for (uint32_t i = 0; i < 3000; ++i) {
    entries.push_back({.column = Column::kChunks,
                       .key = FqnKey(std::string(1 + i % 9, 'w')),
                       .value = RandomBytes(i, i == 1000 ? 200'000 : i % 70)});
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const auto found,
      DecodeSegmentFooter(EncodeFooter(header_, "attempt", entries), header_.segment_id));
  ASSERT_EQ(found.size(), entries.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].key, entries[i].key) << i;
    EXPECT_EQ(found[i].value, entries[i].value) << i;
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const auto none, DecodeSegmentFooter(EncodeFooter(header_, "", {}), header_.segment_id));
  EXPECT_TRUE(none.empty());
}

TEST_F(SegmentFormatTest, FooterWhoseEntriesShareTheirBytesIsRefused) {
  // Otherwise a footer of 3 MiB could fill 100 GiB of memory.
  flatbuffers::FlatBufferBuilder builder;
  const auto value = builder.CreateVector(std::vector<uint8_t>(1000));
  const auto key = builder.CreateVector(std::vector<uint8_t>(10));
  const std::vector entries(10, schema::CreateFooterEntry(builder, 0, key, value));
  const auto entries_at = builder.CreateVector(entries);
  schema::SegmentFooterBuilder footer(builder);
  footer.add_segment_id(header_.segment_id);
  footer.add_entries(entries_at);
  schema::FinishSegmentFooterBuffer(builder, footer.Finish());
  EXPECT_THAT(DecodeSegmentFooter(TakeBytes(builder), header_.segment_id),
              IsError(ErrorCode::kDataLoss, "longer than it"));
}

// --- records

TEST(RecordsTest, SegmentIsDecodedWithTheNameOfItsObject) {
  SegmentInfo info = NewSegmentInfo({.epoch = 9, .id = 1, .id_tail = 0x20});
  info.step = 2;
  info.rank = 3;
  info.file_bytes = 4;
  info.payload_bytes = 5;
  info.chunk_count = 6;
  info.footer_digest = 7;
  info.page_digests_checksum = 8;
  CAIRN_ASSERT_OK_AND_ASSIGN(const SegmentInfo found, DecodeSegment(EncodeSegment(info)));
  EXPECT_EQ(found.segment_id, 1u);
  EXPECT_EQ(found.epoch, 9u);
  EXPECT_EQ(found.name, "00000009-000000000000000100000020.seg");
  EXPECT_EQ(SegmentObject(found), "segments/00000009-000000000000000100000020.seg");
  EXPECT_EQ(found.step, 2u);
  EXPECT_EQ(found.rank, 3u);
  EXPECT_EQ(found.file_bytes, 4u);
  EXPECT_EQ(found.payload_bytes, 5u);
  EXPECT_EQ(found.chunk_count, 6u);
  EXPECT_EQ(found.footer_digest, 7u);
  EXPECT_EQ(found.page_digests_checksum, 8u);
}

TEST(RecordsTest, ChunkExtentIsDecoded) {
  const ChunkEntry entry{.sizes = {3, 4},
                         .extents = Extent{.segment_id = 1,
                                           .offset_bytes = 2,
                                           .length_bytes = 3,
                                           .page_digests_offset_bytes = 4},
                         .digest = {.lo = 5, .hi = 6},
                         .since_step = 7};
  CAIRN_ASSERT_OK_AND_ASSIGN(const ChunkExtents found, DecodeChunkExtents(EncodeChunk(entry)));
  EXPECT_EQ(found, entry.extents);
}

TEST(RecordsTest, ChunkExtentsAreDecodedInTheirOrder) {
  const std::array runs = {Extent{1, 4096, kPageBytes, 70'000},
                           Extent{2, 8192, 2 * kPageBytes, 80'000},
                           Extent{1, 4096 + kPageBytes, 77, 70'008}};
  const ChunkEntry entry{.sizes = {3}, .extents = Extents(runs), .digest = {}, .since_step = 7};
  CAIRN_ASSERT_OK_AND_ASSIGN(const ChunkExtents found, DecodeChunkExtents(EncodeChunk(entry)));
  EXPECT_TRUE(std::ranges::equal(found.payload, runs));
}

// A chunk record that no writer of this version writes.
struct ForeignChunk {
  std::vector<schema::Extent> extents;
  std::vector<schema::Extent> steps;
  uint64_t length_bytes = 0;
  uint8_t page_bits = kPageBits;
  uint8_t digest_kind = 1;
  std::vector<uint8_t> codecs;
  bool has_parameters = false;
  bool has_empty_vectors = false;  // in place of absent ones

  Result<ChunkExtents> Decode() const {
    flatbuffers::FlatBufferBuilder builder;
    const auto list = [&](std::span<const schema::Extent> part) {
      return part.empty() && !has_empty_vectors
                 ? 0
                 : builder.CreateVectorOfStructs(part.data(), part.size());
    };
    const auto further = list(std::span(extents).subspan(std::min<size_t>(1, extents.size())));
    const auto step_list = list(steps);
    const auto codec_list = codecs.empty() && !has_empty_vectors ? 0 : builder.CreateVector(codecs);
    const flatbuffers::Offset<schema::CodecParameters> none[] = {
        schema::CreateCodecParameters(builder)};
    const auto parameters = has_parameters || has_empty_vectors
                                ? builder.CreateVector(none, has_parameters ? 1 : 0)
                                : 0;
    schema::ChunkRecordBuilder record(builder);
    record.add_page_bits(page_bits);
    record.add_digest_kind(digest_kind);
    record.add_length_bytes(length_bytes);
    if (!extents.empty()) record.add_extent(extents.data());
    record.add_further_extents(further);
    record.add_steps(step_list);
    record.add_codecs(codec_list);
    record.add_parameters(parameters);
    schema::FinishChunkRecordBuffer(builder, record.Finish());
    return DecodeChunkExtents(TakeBytes(builder));
  }
};

const schema::Extent kPage(1, 4096, kPageBytes, 70'000), kOther(2, 4096, kPageBytes, 70'000);

TEST(RecordsTest, ExtentsThatAreNotPagesAreRefused) {
  CAIRN_EXPECT_OK((ForeignChunk{.extents = {kPage, kOther}}.Decode()));
  const schema::Extent empty(1, 4096, 0, 70'000), odd(1, 4096, kPageBytes + 1, 70'000),
      endless(1, ~uint64_t{0}, kPageBytes, 70'000);
  for (const schema::Extent& bad : {empty, odd, endless}) {
    EXPECT_THAT((ForeignChunk{.extents = {bad, kOther}}.Decode()),
                IsError(ErrorCode::kDataLoss, "impossible sizes"));
  }
  for (const ForeignChunk& chunk :
       {ForeignChunk{.extents = {kPage, empty}}, ForeignChunk{.extents = {empty}},
        ForeignChunk{.extents = {empty}, .steps = {kOther}},
        ForeignChunk{.extents = {kPage}, .steps = {empty}}}) {
    EXPECT_THAT(chunk.Decode(), IsError(ErrorCode::kDataLoss, "impossible sizes"));
  }
  EXPECT_THAT((ForeignChunk{.steps = {kOther}}.Decode()),
              IsError(ErrorCode::kDataLoss, "no bytes"));
}

TEST(RecordsTest, AnEmptyVectorOfAChunkCountsAsAnAbsentOne) {
  for (ForeignChunk chunk : {ForeignChunk{.extents = {kPage}, .page_bits = 12},
                             ForeignChunk{.extents = {kPage}, .steps = {kOther}},
                             ForeignChunk{.steps = {kOther}, .length_bytes = 100}}) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const ChunkExtents without, chunk.Decode());
    chunk.has_empty_vectors = true;
    CAIRN_ASSERT_OK_AND_ASSIGN(const ChunkExtents with, chunk.Decode());
    EXPECT_EQ(with, without);
  }
  EXPECT_THAT((ForeignChunk{.length_bytes = 100, .has_empty_vectors = true}.Decode()),
              IsError(ErrorCode::kDataLoss, "where its bytes are stored"));
}

TEST(RecordsTest, PagesOf4KiBTo1MiBAreKept) {
  const schema::Extent page(2, 8192, 4096, 70'000), rest(3, 8192, 100, 70'000);
  CAIRN_ASSERT_OK_AND_ASSIGN(const ChunkExtents found,
                             (ForeignChunk{.extents = {page, rest}, .page_bits = 12}.Decode()));
  EXPECT_EQ(found.payload.page_bytes(), 4096u);
  CAIRN_ASSERT_OK_AND_ASSIGN(const ChunkExtents again,
                             DecodeChunkExtents(EncodeChunk({.sizes = {1}, .extents = found})));
  EXPECT_EQ(again, found);
  EXPECT_THAT((ForeignChunk{.extents = {page, rest}}.Decode()),
              IsError(ErrorCode::kDataLoss, "impossible sizes"));
  CAIRN_EXPECT_OK((ForeignChunk{.extents = {kPage}, .page_bits = 20}.Decode()));
  for (const uint8_t page_bits : {0, 11, 21, 255}) {
    EXPECT_THAT((ForeignChunk{.extents = {kPage}, .page_bits = page_bits}.Decode()),
                IsError(ErrorCode::kDataLoss, "its pages"));
  }
  EXPECT_THAT((ForeignChunk{.extents = {kPage}, .steps = {kOther}, .page_bits = 12}.Decode()),
              IsError(ErrorCode::kDataLoss, "pages of 64 KiB"));
}

TEST(RecordsTest, UnknownCodecsAndKindsOfDigestsAreRefusedByName) {
  CAIRN_EXPECT_OK((ForeignChunk{.extents = {kPage}, .steps = {kOther}, .codecs = {1}}.Decode()));
  EXPECT_THAT((ForeignChunk{.extents = {kPage}, .steps = {kOther}, .codecs = {7}}.Decode()),
              IsError(ErrorCode::kUnimplemented, "codec 7"));
  EXPECT_THAT((ForeignChunk{.extents = {kPage}, .digest_kind = 2}.Decode()),
              IsError(ErrorCode::kUnimplemented, "digest of kind 2"));
  EXPECT_THAT((ForeignChunk{.extents = {kPage}, .steps = {kOther}, .codecs = {1, 1}}.Decode()),
              IsError(ErrorCode::kDataLoss, "codecs"));
  EXPECT_THAT((ForeignChunk{.extents = {kPage}, .codecs = {1}}.Decode()),
              IsError(ErrorCode::kDataLoss, "codecs"));
  EXPECT_THAT(
      (ForeignChunk{.extents = {kPage}, .steps = {kOther}, .has_parameters = true}.Decode()),
      IsError(ErrorCode::kDataLoss, "parameters"));
}

TEST(RecordsTest, ACompressedChunkConsistsOfADeltaOfZeros) {
  ChunkEntry entry{.sizes = {50'000}, .extents = Extent::Zeros(100'000), .since_step = 7};
  entry.extents.deltas = {{.segment_id = 3, .offset_bytes = 4096, .length_bytes = 70'000}};
  const std::vector<std::byte> record = EncodeChunk(entry);
  CAIRN_ASSERT_OK_AND_ASSIGN(const ChunkEntry decoded, DecodeChunk(record));
  EXPECT_TRUE(decoded.extents == entry.extents);
  EXPECT_TRUE(decoded.extents.is_compressed());
  std::vector<uint64_t> segments;
  decoded.extents.ForEach([&](const Extent& extent) { segments.push_back(extent.segment_id); });
  EXPECT_EQ(segments, std::vector<uint64_t>{3});  // zeros are stored nowhere
}

TEST(RecordsTest, AnEncoderHasNothingLeftOfTheRecordsBefore) {
  const auto extent = [](uint64_t n) {
    return Extent{.segment_id = n,
                  .offset_bytes = 4096 * n,
                  .length_bytes = 300 + n,
                  .page_digests_offset_bytes = 8 * n};
  };
  std::vector<ChunkEntry> entries;
  for (uint64_t n = 1; n <= 3; ++n) {
    entries.push_back({.sizes = {n, 7}, .extents = extent(n), .digest = {n, n}, .since_step = n});
  }
  entries.push_back({.sizes = {1}, .extents = extent(4), .digest = {5, 6}, .since_step = 1});
  entries.push_back({.sizes = {1}, .extents = extent(4), .digest = {5, 6}, .since_step = 0});
  entries.push_back({.sizes = {}, .extents = extent(5), .since_step = 9});
  entries.push_back({.sizes = {2}, .extents = Extent::Zeros(70), .since_step = 9});
  entries.back().extents.deltas = {extent(6)};
  entries.push_back({.sizes = {2}, .extents = extent(7), .statistics = ChunkStatistics{.max = 1}});
  entries.push_back({.sizes = {2}, .extents = extent(7), .since_step = 9});
  entries.back().extents.payload = Extents(std::vector{Extent{1, 0, 65536, 0}, extent(8)});
  ChunkEncoder encoder;
  for (const ChunkEntry& before : entries) {
    for (const ChunkEntry& entry : entries) {
      (void)encoder.Encode(before);
      const auto record = encoder.Encode(entry);
      EXPECT_EQ(std::vector(record.begin(), record.end()), EncodeChunk(entry));
    }
  }
}

TEST(RecordsTest, PageDigestsOfOneSegmentAreMoved) {
  ChunkEntry entry{.sizes = {2}, .extents = Extent{3, 0, 65536, 16}, .since_step = 9};
  entry.extents.payload = Extents(std::vector{Extent{3, 0, 65536, 16}, Extent{4, 0, 9, 8}});
  entry.extents.deltas = {{3, 70'000, 5, 24}, {5, 0, 6, 0}};
  std::vector<std::byte> record = EncodeChunk(entry);
  MovePageDigests(record, 3, 4096);
  entry.extents.payload = Extents(std::vector{Extent{3, 0, 65536, 4112}, Extent{4, 0, 9, 8}});
  entry.extents.deltas[0].page_digests_offset_bytes = 4120;
  EXPECT_EQ(record, EncodeChunk(entry));
}

TEST(RecordsTest, BytesThatAreStoredNowhereAreRefused) {
  const schema::Extent zeros(0, 0, 100, 0);
  CAIRN_EXPECT_OK((ForeignChunk{.steps = {kOther}, .length_bytes = 100}.Decode()));
  EXPECT_THAT((ForeignChunk{.extents = {zeros}}.Decode()),
              IsError(ErrorCode::kDataLoss, "names no segment"));
  EXPECT_THAT((ForeignChunk{.steps = {zeros}, .length_bytes = 100}.Decode()),
              IsError(ErrorCode::kDataLoss, "names no segment"));
  EXPECT_THAT((ForeignChunk{.length_bytes = 100}.Decode()),
              IsError(ErrorCode::kDataLoss, "where its bytes are stored"));
  EXPECT_THAT((ForeignChunk{.extents = {kPage}, .length_bytes = kPageBytes}.Decode()),
              IsError(ErrorCode::kDataLoss, "twice"));
}

TEST(ExtentsTest, ExtentsThatFollowEachOtherAreJoined) {
  const Extent whole{1, 4096, 3 * kPageBytes + 5, 70'000};
  const std::array parts = {whole.First(kPageBytes), whole.From(kPageBytes).First(2 * kPageBytes),
                            whole.From(3 * kPageBytes)};
  EXPECT_EQ(Extents(parts), Extents(whole));
  EXPECT_EQ(Extents(parts).size(), 1u);
  EXPECT_EQ(Extents(whole).At(2 * kPageBytes),
            (Extent{1, 4096 + 2 * kPageBytes, kPageBytes + 5, 70'016}));
}

TEST(ExtentsTest, PagesOfOtherSizesAreNotJoined) {
  const Extent whole{1, 4096, 3 * 4096, 70'000, 12};
  EXPECT_EQ(whole.page_count(), 3u);
  EXPECT_EQ(whole.From(8192), (Extent{1, 12'288, 4096, 70'016, 12}));
  EXPECT_TRUE(whole.First(4096).IsFollowedBy(whole.From(4096)));
  Extent other = whole.From(4096);
  other.page_bits = 13;
  EXPECT_FALSE(whole.First(4096).IsFollowedBy(other));
}

TEST(RecordsTest, UsageIsDecodedAndWrongSizesAreRefused) {
  const SegmentUse use{.segment = {.epoch = 4, .id = 3, .id_tail = 2}, .live_bytes = 99};
  const auto value = EncodeUsage(use);
  CAIRN_ASSERT_OK_AND_ASSIGN(const SegmentUse found, DecodeUsage(NumberKey(3), value));
  EXPECT_EQ(found, use);
  EXPECT_THAT(DecodeUsage("short", value), IsError(ErrorCode::kDataLoss, "size"));
  EXPECT_THAT(DecodeUsage(NumberKey(3), std::span(value).first(15)),
              IsError(ErrorCode::kDataLoss, "size"));
}

TEST(RecordsTest, TablesAreDecodedAndWrongSizesAreRefused) {
  const std::vector<TableInfo> tables = {
      {.id = {.epoch = 1, .id = ~uint64_t{0}, .id_tail = ~0u},
       .file_bytes = 2,
       .record_count = 3,
       .digest = 4},
      {.id = {.epoch = 5, .id = 6}, .file_bytes = 7, .record_count = 8, .digest = 9}};
  for (size_t count = 0; count <= tables.size(); ++count) {
    const std::vector<TableInfo> some(tables.begin(), tables.begin() + static_cast<long>(count));
    const std::vector<std::byte> record = EncodeTables(some);
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto found, DecodeTables(record));
    EXPECT_EQ(found, some);
    for (size_t size = 0; size < record.size(); ++size) {
      EXPECT_THAT(DecodeTables(std::span(record).first(size)),
                  IsError(ErrorCode::kDataLoss, "size"))
          << size;
    }
  }
}

TEST(RecordsTest, RecordOfAnotherKindIsRefused) {
  EXPECT_THAT(DecodeStep(EncodeSegment(NewSegmentInfo({.epoch = 1, .id = 1}))),
              IsError(ErrorCode::kDataLoss, "StepSummary is damaged"));
  EXPECT_THAT(DecodeSegment(EncodeStep({})),
              IsError(ErrorCode::kDataLoss, "SegmentRecord is damaged"));
  EXPECT_THAT(DecodeChunkExtents({}), IsError(ErrorCode::kDataLoss, "0 bytes"));
}

}  // namespace
}  // namespace cairn::kv::internal
