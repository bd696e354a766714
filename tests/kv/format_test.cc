// Manifests, segment headers, trailers, footers and records: decoding returns what was encoded, and
// refuses damage, of one kind per test.

#include <cairn_schema/chunk_generated.h>
#include <cairn_schema/segment_generated.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "kv/internal/commit/commit_files.h"
#include "kv/internal/commit/manifest.h"
#include "kv/internal/index/index_records.h"
#include "kv/internal/segment/segment_format.h"
#include "kv/step_info.h"
#include "schema/little_endian.h"
#include "tests/kv/sample_step.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::kv::internal {
namespace {

using cairn::testing::IsError;
using cairn::testing::IsOk;
using cairn::testing::ScopedTempDir;
using schema::PutLittleEndian;
using ::testing::ElementsAre;
using testing::RandomBytes;

Uuid TestUuid() {
  Uuid uuid;
  for (size_t i = 0; i < uuid.size(); ++i) uuid[i] = static_cast<std::byte>(i + 1);
  return uuid;
}

// --- manifest

struct Entry {
  Column column;
  std::string key;
  std::vector<std::byte> value;
  friend bool operator==(const Entry&, const Entry&) = default;
};

class ManifestTest : public ::testing::Test {
 protected:
  void SetUp() override {
    entries_ = {{Column::kTensors, FqnKey("w"), RandomBytes(1, 40)},
                {Column::kChunks, ChunkKey("w", std::vector<uint64_t>{0, 4}), RandomBytes(2, 100)},
                {Column::kValues, FqnKey("lr"), {}},
                {Column::kStructures, "", RandomBytes(3, 1000)}};
  }

  Result<ManifestRef> Write() {
    CAIRN_TRY_ASSIGN(const auto writer, ManifestWriter::Create(path_, header_));
    for (const Entry& entry : entries_)
      CAIRN_TRY(writer->Add(entry.column, entry.key, entry.value));
    return writer->Finish();
  }
  Result<std::vector<Entry>> Read(ManifestRef* ref = nullptr) {
    std::vector<Entry> entries;
    CAIRN_TRY_ASSIGN(
        const ManifestRef found,
        ReadManifest(path_,
                     [&](Column column, std::string_view key,
                         std::span<const std::byte> value) -> Result<void> {
                       EXPECT_EQ(reinterpret_cast<uintptr_t>(value.data()) % 8, 0u);
                       entries.push_back({column, std::string(key), {value.begin(), value.end()}});
                       return {};
                     }));
    if (ref != nullptr) *ref = found;
    return entries;
  }
  void FlipByte(uint64_t at) {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte);
  }

  ScopedTempDir dir_;
  const std::string path_ = dir_ / "0.manifest";
  const ManifestHeader header_{.store_uuid = TestUuid(),
                               .step = 77,
                               .rank = 3,
                               .world_size = 8,
                               .created_unix_ns = 123'456'789,
                               .attempt = "0123456789abcdef-77-2"};
  std::vector<Entry> entries_;
};

TEST_F(ManifestTest, ReadReturnsWhatWasWritten) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const ManifestRef written, Write());
  ManifestRef found;
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto entries, Read(&found));
  EXPECT_EQ(entries, entries_);
  EXPECT_EQ(found.rank, 3u);
  EXPECT_EQ(found.file_bytes, std::filesystem::file_size(path_));
  EXPECT_EQ(found.file_bytes, written.file_bytes);
  EXPECT_EQ(found.digest, written.digest);
  CAIRN_ASSERT_OK_AND_ASSIGN(const ManifestHeader header, ReadManifestHeader(path_));
  EXPECT_EQ(header.step, 77u);
  EXPECT_EQ(header.world_size, 8u);
  EXPECT_EQ(header.created_unix_ns, 123'456'789);
  EXPECT_EQ(header.attempt, header_.attempt);
  EXPECT_EQ(header.store_uuid, header_.store_uuid);
}

TEST_F(ManifestTest, ReadReturnsManyBlocks) {
  entries_.clear();
  for (uint64_t i = 0; i < 300; ++i) {
    entries_.push_back({Column::kChunks, ChunkKey("w", std::vector{i}), RandomBytes(i, 10'000)});
  }
  // One record is larger than the intended size of a block.
  entries_.push_back({Column::kStructures, "", RandomBytes(9, 3 << 20)});
  CAIRN_ASSERT_OK(Write());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto entries, Read());
  EXPECT_EQ(entries, entries_);
}

TEST_F(ManifestTest, EmptyManifestIsRead) {
  entries_.clear();
  CAIRN_ASSERT_OK(Write());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto entries, Read());
  EXPECT_EQ(entries, entries_);
}

TEST_F(ManifestTest, ExistingFileIsNotOverwritten) {
  CAIRN_ASSERT_OK(Write());
  EXPECT_THAT(Write(), IsError(ErrorCode::kConflict, "cannot create"));
}

TEST_F(ManifestTest, EveryFlippedByteIsRefusedAndTheFileNamed) {
  CAIRN_ASSERT_OK(Write());
  const uint64_t size = std::filesystem::file_size(path_);
  for (uint64_t at = 0; at < size; ++at) {
    FlipByte(at);
    EXPECT_THAT(Read(), IsError(ErrorCode::kDataLoss, path_)) << "byte " << at;
    FlipByte(at);
  }
  CAIRN_EXPECT_OK(Read());
}

TEST_F(ManifestTest, EveryTruncationIsRefused) {
  CAIRN_ASSERT_OK(Write());
  for (uint64_t size = std::filesystem::file_size(path_); size > 0; --size) {
    std::filesystem::resize_file(path_, size - 1);
    ASSERT_THAT(Read(), IsError(ErrorCode::kDataLoss, path_)) << size - 1 << " bytes left";
  }
}

TEST_F(ManifestTest, BytesAfterTheEndAreRefused) {
  CAIRN_ASSERT_OK(Write());
  std::ofstream(path_, std::ios::app | std::ios::binary) << '\0';
  EXPECT_THAT(Read(), IsError(ErrorCode::kDataLoss, "end"));
}

TEST_F(ManifestTest, NewerVersionIsUnimplementedNotDamaged) {
  CAIRN_ASSERT_OK(Write());
  std::vector<std::byte> bytes = *ReadWholeFile(path_, 1 << 20);
  PutLittleEndian<uint32_t>(bytes, 8, kManifestVersion + 1);
  PutLittleEndian(bytes, kManifestHeaderBytes - 8,
                  Checksum64(std::span(bytes).first(kManifestHeaderBytes - 8)));
  std::ofstream(path_, std::ios::binary | std::ios::trunc)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  EXPECT_THAT(Read(), IsError(ErrorCode::kUnimplemented, "version 2"));
}

TEST_F(ManifestTest, ErrorOfTheCallbackEndsTheRead) {
  CAIRN_ASSERT_OK(Write());
  int calls = 0;
  const auto result = ReadManifest(path_, [&](Column, std::string_view, auto) -> Result<void> {
    ++calls;
    return Fail(ErrorCode::kCancelled, "enough");
  });
  EXPECT_THAT(result, IsError(ErrorCode::kCancelled, "enough"));
  EXPECT_EQ(calls, 1);
}

// --- segments

class SegmentFormatTest : public ::testing::Test {
 protected:
  const SegmentHeader header_{.store_uuid = TestUuid(),
                              .segment_id = 0x1122334455667788,
                              .step = 9,
                              .rank = 2,
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
  EXPECT_THAT(DecodeSegmentHeader(bytes), IsError(ErrorCode::kUnimplemented, "version 2"));
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
  const auto refuses = [](const SegmentTrailer& trailer) {
    std::array<std::byte, kSegmentTrailerBytes> bytes;
    EncodeSegmentTrailer(trailer, bytes);
    const auto decoded = DecodeSegmentTrailer(bytes, kFileBytes);
    return !decoded && decoded.error().code == ErrorCode::kDataLoss;
  };
  EXPECT_FALSE(refuses(trailer_));
  SegmentTrailer hostile = trailer_;
  hostile.payload_end_bytes = kSegmentHeaderBytes - 1;
  EXPECT_TRUE(refuses(hostile));
  hostile = trailer_;
  hostile.payload_end_bytes = trailer_.page_digests_offset_bytes + 1;
  EXPECT_TRUE(refuses(hostile));
  hostile = trailer_;
  hostile.page_digests_offset_bytes = ~uint64_t{0};
  EXPECT_TRUE(refuses(hostile));
  hostile = trailer_;
  hostile.page_digest_count = (~uint64_t{0} / 8) + 2;  // wraps around when multiplied
  EXPECT_TRUE(refuses(hostile));
  hostile = trailer_;
  hostile.footer_bytes = kFileBytes;
  EXPECT_TRUE(refuses(hostile));
}

TEST_F(SegmentFormatTest, FooterIsDecoded) {
  const std::vector<FooterEntry> entries = {
      {.column = Column::kTensors, .key = FqnKey("w"), .value = RandomBytes(1, 33)},
      {.column = Column::kChunks,
       .key = ChunkKey("w", std::vector<uint64_t>{0}),
       .value = RandomBytes(2, 9)}};
  const std::vector<std::byte> bytes = EncodeSegmentFooter(header_, "attempt", entries);
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

TEST(SegmentNameTest, NamesAreParsedAndOthersAreNotSegments) {
  EXPECT_EQ(SegmentName(100, 7, 0xabc), "100-7-0000000000000abc.seg");
  EXPECT_EQ(ParseSegmentName(SegmentName(100, 7, ~uint64_t{0})), ~uint64_t{0});
  for (const char* name : {"", ".seg", "0000000000000abc.seg", "1-0-000000000000xabc.seg",
                           "1-0-0000000000000abc.tmp", "notes.txt"}) {
    EXPECT_FALSE(ParseSegmentName(name)) << name;
  }
}

TEST(CommitFileTest, NamesAreParsedAndOthersAreNotCommits) {
  const StorePaths paths{"/s"};
  EXPECT_EQ(paths.manifest(12, 3), "/s/commits/12-3.manifest");
  const auto file = ParseCommitFile("12-3.manifest");
  ASSERT_TRUE(file);
  EXPECT_EQ(file->generation, 12u);
  EXPECT_EQ(file->rank, 3u);
  EXPECT_FALSE(file->deleting);
  EXPECT_TRUE(ParseCommitFile("12-3.deleting")->deleting);
  for (const char* name : {"", "12", "12-", "12-3", "-3.manifest", "12-3.manifest.old",
                           "x-3.manifest", "99999999999999999999999-0.manifest"}) {
    EXPECT_FALSE(ParseCommitFile(name)) << name;
  }
}

// --- records

TEST(RecordsTest, StepIsDecoded) {
  StepEntry entry;
  entry.info = {.step = 5,
                .generation = 6,
                .created_unix_ns = 7,
                .world_size = 8,
                .attempt = "a-5-0",
                .base_step = 0,
                .tensor_count = 9,
                .value_count = 10,
                .chunk_count = 11,
                .reused_chunk_count = 12,
                .logical_bytes = 13,
                .written_bytes = 14,
                .structure = {.lo = 15, .hi = 16}};
  entry.manifests = {{.rank = 0, .file_bytes = 17, .digest = {.lo = 18, .hi = 19}}, {.rank = 1}};
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepEntry found, DecodeStep(EncodeStep(entry)));
  EXPECT_EQ(found.info.step, 5u);
  EXPECT_EQ(found.info.generation, 6u);
  EXPECT_EQ(found.info.created_unix_ns, 7);
  EXPECT_EQ(found.info.world_size, 8u);
  EXPECT_EQ(found.info.attempt, "a-5-0");
  EXPECT_EQ(found.info.base_step, 0u) << "a base step 0 is not the same as none";
  EXPECT_EQ(found.info.tensor_count, 9u);
  EXPECT_EQ(found.info.value_count, 10u);
  EXPECT_EQ(found.info.chunk_count, 11u);
  EXPECT_EQ(found.info.reused_chunk_count, 12u);
  EXPECT_EQ(found.info.logical_bytes, 13u);
  EXPECT_EQ(found.info.written_bytes, 14u);
  EXPECT_EQ(found.info.structure, (Digest{.lo = 15, .hi = 16}));
  ASSERT_EQ(found.manifests.size(), 2u);
  EXPECT_EQ(found.manifests[0].file_bytes, 17u);
  EXPECT_EQ(found.manifests[0].digest, (Digest{.lo = 18, .hi = 19}));
  EXPECT_EQ(found.manifests[1].rank, 1u);
  entry.info.base_step.reset();
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepEntry without_base, DecodeStep(EncodeStep(entry)));
  EXPECT_FALSE(without_base.info.base_step);
}

TEST(RecordsTest, SegmentIsDecodedAndItsNameMustBeAFileName) {
  const SegmentInfo info{.segment_id = 1,
                         .name = "1-0-0000000000000001.seg",
                         .step = 2,
                         .rank = 3,
                         .file_bytes = 4,
                         .payload_bytes = 5,
                         .chunk_count = 6,
                         .footer_digest = 7,
                         .page_digests_checksum = 8};
  CAIRN_ASSERT_OK_AND_ASSIGN(const SegmentInfo found, DecodeSegment(EncodeSegment(info)));
  EXPECT_EQ(found.segment_id, 1u);
  EXPECT_EQ(found.name, info.name);
  EXPECT_EQ(found.step, 2u);
  EXPECT_EQ(found.rank, 3u);
  EXPECT_EQ(found.file_bytes, 4u);
  EXPECT_EQ(found.payload_bytes, 5u);
  EXPECT_EQ(found.chunk_count, 6u);
  EXPECT_EQ(found.footer_digest, 7u);
  EXPECT_EQ(found.page_digests_checksum, 8u);
  for (const char* hostile : {"", "../../etc/passwd", "a/b"}) {
    flatbuffers::FlatBufferBuilder builder;  // EncodeSegment would refuse the name
    const auto name = builder.CreateString(hostile);
    schema::FinishSegmentRecordBuffer(
        builder, schema::CreateSegmentRecord(builder, schema::kRecordVersion, info.segment_id, name,
                                             info.step, info.rank, info.file_bytes));
    EXPECT_THAT(DecodeSegment(TakeBytes(builder)),
                IsError(ErrorCode::kDataLoss, "not a file name"));
  }
}

TEST(RecordsTest, ChunkExtentIsDecoded) {
  const ChunkEntry entry{.sizes = {3, 4},
                         .extents = Extent{.segment_id = 1,
                                           .offset_bytes = 2,
                                           .length_bytes = 3,
                                           .page_digests_offset_bytes = 4},
                         .digest = {.lo = 5, .hi = 6},
                         .since_step = 7};
  CAIRN_ASSERT_OK_AND_ASSIGN(const Extents found, DecodeChunkExtents(EncodeChunk(entry)));
  EXPECT_EQ(found, entry.extents);
}

TEST(RecordsTest, ChunkExtentsAreDecodedInTheirOrder) {
  const std::array runs = {Extent{1, 4096, kPageBytes, 70'000},
                           Extent{2, 8192, 2 * kPageBytes, 80'000},
                           Extent{1, 4096 + kPageBytes, 77, 70'008}};
  const ChunkEntry entry{.sizes = {3}, .extents = Extents(runs), .digest = {}, .since_step = 7};
  CAIRN_ASSERT_OK_AND_ASSIGN(const Extents found, DecodeChunkExtents(EncodeChunk(entry)));
  EXPECT_TRUE(std::ranges::equal(found, runs));
}

TEST(RecordsTest, OnlyTheFormOfSeveralExtentsIsNewToOlderReaders) {
  const auto version_of = [](const Extents& extents) {
    const auto record = EncodeChunk({.sizes = {1}, .extents = extents});
    return flatbuffers::GetRoot<schema::ChunkRecord>(record.data())->version();
  };
  EXPECT_EQ(version_of(Extent{1, 4096, 5, 8192}), schema::kRecordVersion);
  const std::array runs = {Extent{1, 4096, kPageBytes, 70'000}, Extent{2, 4096, 5, 80'000}};
  EXPECT_EQ(version_of(Extents(runs)), schema::kSeveralExtentsVersion);
}

TEST(RecordsTest, ExtentsThatAreNotPagesAreRefused) {
  const auto decode = [](uint8_t version, const std::vector<schema::Extent>& runs) {
    flatbuffers::FlatBufferBuilder builder;
    const auto extents = builder.CreateVectorOfStructs(runs);
    schema::ChunkRecordBuilder record(builder);
    record.add_version(version);
    record.add_extents(extents);
    schema::FinishChunkRecordBuffer(builder, record.Finish());
    return DecodeChunkExtents(TakeBytes(builder));
  };
  const schema::Extent page(1, 4096, kPageBytes, 70'000), other(2, 4096, kPageBytes, 70'000);
  CAIRN_EXPECT_OK(decode(2, {page, other}));
  EXPECT_THAT(decode(1, {page, other}),
              IsError(ErrorCode::kDataLoss, "where its bytes are stored"));
  EXPECT_THAT(decode(2, {page}), IsError(ErrorCode::kDataLoss, "requires several extents"));
  EXPECT_THAT(decode(3, {page, other}), IsError(ErrorCode::kUnimplemented, "newer"));
  const schema::Extent empty(1, 4096, 0, 70'000), odd(1, 4096, kPageBytes + 1, 70'000),
      endless(1, ~uint64_t{0}, kPageBytes, 70'000);
  for (const schema::Extent& bad : {empty, odd, endless}) {
    EXPECT_THAT(decode(2, {bad, other}), IsError(ErrorCode::kDataLoss, "impossible sizes"));
  }
  EXPECT_THAT(decode(2, {page, empty}), IsError(ErrorCode::kDataLoss, "impossible sizes"));
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

TEST(RecordsTest, UsageIsDecodedAndWrongSizesAreRefused) {
  const uint64_t live_bytes = 99;
  const auto value = std::as_bytes(std::span(&live_bytes, 1));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Usage usage, DecodeUsage(UsageKey(3, 4), value));
  EXPECT_EQ(usage.segment_id, 3u);
  EXPECT_EQ(usage.generation, 4u);
  EXPECT_EQ(usage.live_bytes, 99u);
  EXPECT_THAT(DecodeUsage("short", value), IsError(ErrorCode::kDataLoss, "size"));
  EXPECT_THAT(DecodeUsage(UsageKey(3, 4), value.first(7)), IsError(ErrorCode::kDataLoss, "size"));
}

TEST(RecordsTest, RecordOfAnotherKindIsRefused) {
  EXPECT_THAT(DecodeStep(EncodeSegment({.segment_id = 1, .name = "n"})),
              IsError(ErrorCode::kDataLoss, "StepRecord is damaged"));
  EXPECT_THAT(DecodeSegment(EncodeChunk({})),
              IsError(ErrorCode::kDataLoss, "SegmentRecord is damaged"));
  EXPECT_THAT(DecodeChunkExtents({}), IsError(ErrorCode::kDataLoss, "0 bytes"));
}

}  // namespace
}  // namespace cairn::kv::internal
