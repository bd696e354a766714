// Roots and pages as bytes: what is encoded is decoded, and no bytes crash a decoder.

#include "kv/root/internal/root_record.h"

#include <cairn_schema/root_generated.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zstd.h>

#include <random>
#include <span>
#include <vector>

#include "kv/base/digest.h"
#include "kv/root/internal/framed_record.h"
#include "kv/root/internal/step_summary.h"
#include "kv/table/internal/table_reader.h"
#include "schema/little_endian.h"
#include "tests/kv/root/sample_root.h"
#include "tests/support/result_matchers.h"

namespace cairn::kv {
namespace {

using cairn::testing::IsError;
using internal::AddSummary;
using internal::DecodePage;
using internal::DecodeRoot;
using internal::EncodePage;
using internal::EncodeRoot;
using internal::Root;
using testing::EmptyRoot;
using testing::Same;
using testing::SampleEntry;
using testing::Shared;
using Builder = flatbuffers::FlatBufferBuilder;

constexpr internal::FrameKind kRootFrame{.magic = "CNRT", .version = 1, .name = "root"};

Root SampleRoot() {
  std::mt19937_64 random(1);
  Root root = EmptyRoot(12);
  root.predecessor = internal::NewUuid();
  for (const uint64_t step : {500, 501, 700}) {
    root.recent.push_back(Shared(SampleEntry(step, step + 1, random)));
  }
  root.pages = {{.id = {.epoch = 1, .id = 5, .id_tail = 7},
                 .file_bytes = 900,
                 .digest = 77,
                 .steps = {0, 1, 300}},
                {.id = {.epoch = 2, .id = 6, .id_tail = ~0u},
                 .file_bytes = 800,
                 .digest = 78,
                 .steps = {2, 499}}};
  root.removed = {{.name = "tables/00000001-000000000000000200000000.sst",
                   .since_unix_ns = 1'700'000'000'000'000'000,
                   .file_bytes = 4096}};
  return root;
}

void ExpectSameEntries(const std::vector<internal::StepEntryPtr>& a,
                       const std::vector<internal::StepEntryPtr>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(Same(*a[i], *b[i])) << i;
}

TEST(RootRecordTest, PageIsDecodedAsItWasEncoded) {
  std::mt19937_64 random(2);
  std::vector<internal::StepEntryPtr> entries;
  for (uint64_t step = 0; step < 48; ++step) {
    internal::StepEntry entry = SampleEntry(step * step, step, random, step % 9, step % 17);
    entry.usage_in_tables = entry.usage.empty();
    entries.push_back(Shared(std::move(entry)));
  }

  CAIRN_ASSERT_OK_AND_ASSIGN(const auto object, EncodePage(entries));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto decoded, DecodePage(object));

  ExpectSameEntries(decoded, entries);
}

TEST(RootRecordTest, ExtremeNumbersOfStepsAreKept) {
  std::mt19937_64 random(3);
  Root root = EmptyRoot(~uint64_t{0} - 1);
  const uint64_t last = ~uint64_t{0};
  root.recent = {Shared(SampleEntry(last, 1, random))};
  root.pages = {{.id = {}, .file_bytes = 1, .digest = 2, .steps = {0, 1, last / 2, last - 1}}};

  CAIRN_ASSERT_OK_AND_ASSIGN(const auto object, EncodeRoot(root));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Root decoded, DecodeRoot(object));

  EXPECT_EQ(decoded.pages, root.pages);
  EXPECT_EQ(decoded.recent.back()->info.step, last);
}

// They were cut silently, so that the next commit would have lost them.
TEST(RootRecordTest, RefusesAStepThatExceedsALimit) {
  std::mt19937_64 random(4);
  const auto encode = [&](size_t metrics, size_t name_length, size_t note_bytes) {
    internal::StepEntry entry = SampleEntry(1, 1, random);
    entry.info.metrics.assign(metrics, {.name = std::string(name_length, 'm'), .value = 1});
    entry.info.note.assign(note_bytes, 'n');
    return EncodePage(std::vector{Shared(std::move(entry))});
  };
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto object, encode(kMaxMetrics, kMaxNameLength, kMaxNoteBytes));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto entries, DecodePage(object));
  EXPECT_EQ(entries.front()->info.metrics.size(), kMaxMetrics);
  EXPECT_EQ(entries.front()->info.note.size(), kMaxNoteBytes);

  // EncodePage reads what it has encoded.
  EXPECT_THAT(encode(kMaxMetrics + 1, 1, 0), IsError(ErrorCode::kInternal, "too many metrics"));
  EXPECT_THAT(encode(1, kMaxNameLength + 1, 0), IsError(ErrorCode::kInternal, "longer than 64"));
  EXPECT_THAT(encode(1, 1, kMaxNoteBytes + 1), IsError(ErrorCode::kInternal, "longer than 4096"));
}

TEST(RootRecordTest, EveryFlippedByteAndEveryTruncationIsDetected) {
  const auto expect_refusals = [](std::vector<std::byte> bytes, const auto& decode,
                                  const char* words) {
    const auto is_damaged = IsError(ErrorCode::kDataLoss, words);
    for (size_t i = 0; i < bytes.size(); ++i) {
      EXPECT_THAT(decode(std::span<const std::byte>(bytes).first(i)), is_damaged) << i << " bytes";
      bytes[i] ^= std::byte{0x41};
      EXPECT_THAT(decode(bytes), is_damaged) << "byte " << i;
      bytes[i] ^= std::byte{0x41};
    }
    bytes.push_back(std::byte{0});
    EXPECT_THAT(decode(bytes), is_damaged);
  };
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto root, EncodeRoot(SampleRoot()));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto page, EncodePage(SampleRoot().recent));
  expect_refusals(root, DecodeRoot, "the root is damaged");
  expect_refusals(page, DecodePage, "page of steps is damaged");
}

/// Decodes a record in a frame whose checksum is right. It may even be a root: one with another
/// number, for example.
void ExpectSurvival(std::span<const std::byte> hostile) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto framed, FrameRecord(kRootFrame, hostile));
  const auto decoded = DecodeRoot(framed);
  if (decoded) return;
  EXPECT_TRUE(decoded.error().code == ErrorCode::kDataLoss ||
              decoded.error().code == ErrorCode::kUnimplemented)
      << decoded.error().ToString();
}

TEST(RootRecordTest, HostileRecordsInAValidFrameDoNotCrash) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto object, EncodeRoot(SampleRoot()));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto record, UnframeRecord(kRootFrame, object));
  std::mt19937_64 random(4);
  for (size_t i = 0; i < record.size(); ++i) {
    for (const int bits : {0x01, 0x80, 0xff}) {
      auto hostile = record;
      hostile[i] ^= static_cast<std::byte>(bits);
      hostile[random() % hostile.size()] ^= static_cast<std::byte>(random());
      ExpectSurvival(hostile);
    }
    ExpectSurvival(std::span(record).first(i));
  }
}

/// Makes the checksum of a frame right.
std::vector<std::byte> Repaired(std::vector<std::byte> frame) {
  const size_t covered = frame.size() - 8;
  schema::PutLittleEndian<uint64_t>(frame, covered, Checksum64(std::span(frame).first(covered)));
  return frame;
}

TEST(RootRecordTest, LengthsAreNotTrusted) {
  CAIRN_ASSERT_OK_AND_ASSIGN(auto hostile, FrameRecord(kRootFrame, std::vector<std::byte>(100)));
  for (const uint32_t lie : {0u, 99u, 101u, 64u << 20, 0xffffffffu}) {
    schema::PutLittleEndian<uint32_t>(hostile, 8, lie);
    EXPECT_THAT(UnframeRecord(kRootFrame, Repaired(hostile)),
                IsError(ErrorCode::kDataLoss, "damaged"))
        << lie;
  }
  // A zstd frame without blocks that states, as the header does, that it has 64 MiB.
  constexpr uint32_t kLie = 64u << 20;
  hostile.resize(16 + 16 + 8);
  schema::PutLittleEndian<uint32_t>(hostile, 8, kLie);
  schema::PutLittleEndian<uint32_t>(hostile, 12, 16);
  schema::PutLittleEndian<uint32_t>(hostile, 16, 0xfd2fb528);  // magic of zstd
  schema::PutLittleEndian<uint8_t>(hostile, 20, 0xa0);  // one segment, and its length in 4 bytes
  schema::PutLittleEndian<uint32_t>(hostile, 21, kLie);
  EXPECT_THAT(UnframeRecord(kRootFrame, Repaired(hostile)),
              IsError(ErrorCode::kDataLoss, "another length"));
}

TEST(RootRecordTest, TooLargeRecordIsRefused) {
  const std::vector<std::byte> large(internal::kMaxRecordBytes + 1);
  EXPECT_THAT(FrameRecord(kRootFrame, large), IsError(ErrorCode::kResourceExhausted, "limit"));
}

std::span<const std::byte> BytesOf(const Builder& builder) {
  return std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize()));
}

TEST(RootRecordTest, NewerVersionsAreUnimplemented) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto object, EncodeRoot(SampleRoot()));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto record, UnframeRecord(kRootFrame, object));
  const internal::FrameKind newer{.magic = "CNRT", .version = 2, .name = "root"};
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto newer_frame, FrameRecord(newer, record));
  EXPECT_THAT(DecodeRoot(newer_frame), IsError(ErrorCode::kUnimplemented, "version 2"));
  auto longer_version = object;
  longer_version[7] = std::byte{1};
  EXPECT_THAT(DecodeRoot(Repaired(longer_version)), IsError(ErrorCode::kUnimplemented, "version"));

  Builder builder;
  schema::FinishRootRecordBuffer(builder, schema::CreateRootRecord(builder, /*version=*/2));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto newer_record, FrameRecord(kRootFrame, BytesOf(builder)));
  EXPECT_THAT(DecodeRoot(newer_record), IsError(ErrorCode::kUnimplemented, "newer"));
}

/// Decodes a root with these recent steps and pages, of which each is a list of varints.
Result<Root> DecodeWith(const std::vector<uint64_t>& recent,
                        const std::vector<std::vector<uint8_t>>& pages) {
  Builder builder;
  const std::vector<uint8_t> uuid(16);
  std::vector<flatbuffers::Offset<schema::StepEntry>> steps;
  for (const uint64_t step : recent) {
    const auto summary = AddSummary(builder, {.step = step});
    steps.push_back(schema::CreateStepEntry(builder, summary));
  }
  std::vector<flatbuffers::Offset<schema::PageRef>> refs;
  const schema::ObjectId id(1, 0, 2);
  for (const auto& page : pages) {
    refs.push_back(schema::CreatePageRef(builder, &id, 3, 4, builder.CreateVector(page)));
  }
  const auto root = schema::CreateRootRecord(
      builder, 1, 5, builder.CreateVector(uuid), builder.CreateVector(uuid), 1, 0, 0,
      builder.CreateVector(steps), builder.CreateVector(refs));
  schema::FinishRootRecordBuffer(builder, root);
  CAIRN_TRY_ASSIGN(const auto object, FrameRecord(kRootFrame, BytesOf(builder)));
  return DecodeRoot(object);
}

TEST(RootRecordTest, InconsistentStepsAreDamage) {
  CAIRN_EXPECT_OK(DecodeWith({9}, {{1, 2}, {4}}));
  const auto damaged = [](const char* words) { return IsError(ErrorCode::kDataLoss, words); };
  EXPECT_THAT(DecodeWith({9, 9}, {}), damaged("not ascending"));
  EXPECT_THAT(DecodeWith({9, 8}, {}), damaged("not ascending"));
  EXPECT_THAT(DecodeWith({9}, {std::vector<uint8_t>()}), damaged("no steps"));
  EXPECT_THAT(DecodeWith({9}, {{1, 0}}), damaged("not ascending"));
  EXPECT_THAT(DecodeWith({9}, {{1, 0x80}}), damaged("not ascending"));
  EXPECT_THAT(DecodeWith({9}, {std::vector<uint8_t>(11, 0xff)}), damaged("not ascending"));
  EXPECT_THAT(DecodeWith({9}, {{1, 2}, {3}}), damaged("listed twice"));
  EXPECT_THAT(DecodeWith({2, 9}, {{1, 1}}), damaged("listed twice"));
  EXPECT_THAT(DecodeWith({9}, {{10}}), damaged("highest step is in a page"));
  EXPECT_THAT(DecodeWith({}, {{1}}), damaged("highest step is in a page"));
}

// The encoder checks its own output.
TEST(RootRecordTest, WhatReadersRefuseIsNotEncoded) {
  std::mt19937_64 random(2);
  internal::StepEntry deep = SampleEntry(5, 6, random);
  deep.tables.resize(internal::kMaxTables + 1);
  internal::StepEntry wide = SampleEntry(5, 6, random);
  wide.usage.resize(internal::kMaxInlineSegments + 1);
  for (const internal::StepEntry& entry : {deep, wide}) {
    EXPECT_THAT(EncodePage(std::vector{Shared(entry)}),
                IsError(ErrorCode::kInternal, "nothing was put"));
    Root root = EmptyRoot(7);
    root.recent = {Shared(entry)};
    EXPECT_THAT(EncodeRoot(root), IsError(ErrorCode::kInternal, "nothing was put"));
  }
}

// Zeros compress as well as any contents can.
TEST(RootRecordTest, ZerosOfEveryLengthAreWithinTheLimitOfFrames) {
  for (const size_t length : {0, 1, 100, 131'072, 131'073, 1'000'000, 64 << 20}) {
    const std::vector<std::byte> zeros(length);
    std::vector<std::byte> stored(ZSTD_compressBound(length));
    for (const int level : {1, 3, 19}) {
      if (level == 19 && length > 1'000'000) continue;
      const size_t stored_bytes =
          ZSTD_compress(stored.data(), stored.size(), zeros.data(), zeros.size(), level);
      ASSERT_FALSE(ZSTD_isError(stored_bytes));
      EXPECT_LE(length, internal::MaxZstdContentBytes(stored_bytes))
          << length << " at level " << level;
    }
  }
}

}  // namespace
}  // namespace cairn::kv
