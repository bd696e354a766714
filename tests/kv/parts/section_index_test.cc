// Ranges of about equal numbers of chunks, whatever the parts are, and the reads of each range.

#include "kv/internal/parts/section_index.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv/internal/parts/part_file.h"
#include "kv/internal/storage/memory_storage.h"
#include "kv/key.h"
#include "tests/support/result_matchers.h"
#include "tests/support/seeded_random.h"

namespace cairn::kv::internal {
namespace {

using cairn::testing::IsError;
using cairn::testing::SeededRandom;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string Name(int tensor) { return FqnKey(fmt::format("w{:03}", tensor)); }

PartSection Section(int first, int last, uint64_t chunks, uint64_t offset_bytes = 0) {
  return {.first = Name(first),
          .last = Name(last),
          .offset_bytes = offset_bytes,
          .stored_bytes = 100,
          .chunk_count = chunks};
}

TEST(SectionIndexTest, RanksWithTheSameTensorsGiveEqualRanges) {
  SectionIndex index;
  for (uint32_t rank = 0; rank < 100; ++rank) {
    for (int i = 0; i < 32; ++i) index.Add(rank, Section(10 * i, 10 * i + 9, 20, 100 * i));
  }

  EXPECT_EQ(index.chunk_count(), 64'000u);
  EXPECT_THAT(index.Split(4), ElementsAre("", Name(80), Name(160), Name(240)));
  EXPECT_THAT(index.Split(1), ElementsAre(""));
  EXPECT_EQ(index.Split(8).size(), 8u);
}

TEST(SectionIndexTest, LargeTensorLeavesTheOthersToTheOtherRanges) {
  SectionIndex index;
  index.Add(0, Section(0, 0, 10'000));
  for (int i = 1; i <= 30; ++i) index.Add(0, Section(i, i, 100));

  EXPECT_THAT(index.Split(4), ElementsAre("", Name(1), Name(11), Name(21)));
}

TEST(SectionIndexTest, FewSectionsGiveFewRanges) {
  SectionIndex index;
  EXPECT_THAT(index.Split(8), ElementsAre(""));
  index.Add(3, Section(5, 9, 50));
  EXPECT_THAT(index.Split(8), ElementsAre(""));
}

TEST(SectionIndexTest, NeighbouringSectionsAreOneRead) {
  SectionIndex index;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    for (int i = 0; i < 4; ++i) index.Add(rank, Section(10 * i, 10 * i + 9, 20, 100 * i));
  }

  const auto reads = index.ReadsOf(Name(10), Name(30));

  const SectionRead expected{.offset_bytes = 100, .stored_bytes = 200, .chunk_count = 40};
  SectionRead other = expected;
  other.rank = 1;
  EXPECT_THAT(reads, ElementsAre(expected, other));
  EXPECT_EQ(index.ReadsOf("", "").size(), 2u);
}

TEST(SectionIndexTest, SectionThatARangeCutsIsReadForBothRanges) {
  SectionIndex index;
  index.Add(0, Section(0, 9, 20));

  EXPECT_EQ(index.ReadsOf("", Name(5)).size(), 1u);
  EXPECT_EQ(index.ReadsOf(Name(5), "").size(), 1u);
  EXPECT_THAT(index.ReadsOf(Name(10), ""), IsEmpty());
}

TEST(SectionIndexTest, RangesAreWithinASectionOfTheirShare) {
  SeededRandom random;
  fmt::print("CAIRN_TEST_SEED={}\n", random.seed());
  for (int round = 0; round < 50; ++round) {
    SectionIndex index;
    uint64_t largest = 0;
    std::map<std::string, uint64_t> by_name;
    for (uint32_t rank = 0; rank < 20; ++rank) {
      for (int i = 0; i < 300;) {
        const int length = static_cast<int>(random.Between(1, 20));
        const uint64_t chunks = random.Between(1, 30);
        index.Add(rank, Section(i, i + length - 1, chunks));
        by_name[Name(i)] += chunks;
        i += length;
      }
    }
    for (const auto& [name, chunks] : by_name) largest = std::max(largest, chunks);
    const size_t count = random.Between(2, 8);
    const auto begins = index.Split(count);
    ASSERT_EQ(begins.size(), count);
    for (size_t i = 0; i < count; ++i) {
      uint64_t chunks = 0;
      for (const auto& [name, own] : by_name) {
        if (name >= begins[i] && (i + 1 == count || name < begins[i + 1])) chunks += own;
      }
      EXPECT_LE(chunks, index.chunk_count() / count + largest + 1);
    }
  }
}

class IndexedPartTest : public ::testing::Test {
 protected:
  /// Writes `chunks` chunks of each tensor, in the opposite order of their keys.
  void Write(int tensors, uint64_t chunks) {
    PartWriter writer(storage_, kName, header_);
    CAIRN_ASSERT_OK(writer.Add(Column::kStructures, "0123456789abcdef", {}));
    for (int tensor = tensors; tensor-- > 0;) {
      for (uint64_t i = chunks; i-- > 0;) {
        const std::string key =
            ChunkKey(fmt::format("w{:03}", tensor), std::vector<uint64_t>{i, 0});
        CAIRN_ASSERT_OK(writer.Add(Column::kChunks, key, std::vector<std::byte>(40)));
      }
    }
    CAIRN_ASSERT_OK(writer.Finish());
  }
  Result<std::vector<PartSection>> ReadIndex() {
    std::vector<PartSection> sections;
    CAIRN_TRY(ReadPart(*storage_, kName, header_, [&](const RecordView& record) -> Result<void> {
      EXPECT_NE(record.column, Column::kChunks);
      if (record.column != Column::kTables) return {};
      CAIRN_TRY_ASSIGN(PartSection section, DecodeSection(record.key, record.value));
      sections.push_back(std::move(section));
      return {};
    }));
    return sections;
  }
  Result<std::vector<std::string>> ReadKeys(const PartSection& section) {
    std::vector<std::byte> bytes(section.stored_bytes);
    const std::string name = PartDataName(kName, section.data_object);
    CAIRN_TRY(storage_->ReadRange(name, section.offset_bytes, bytes));
    std::vector<std::string> keys;
    CAIRN_TRY(ReadSections(name, bytes, section.chunk_count,
                           [&](const RecordView& record) -> Result<void> {
                             keys.emplace_back(record.key);
                             return {};
                           }));
    return keys;
  }

  static constexpr char kName[] = "pending/0123456789abcdef-77-2/3.part";
  std::shared_ptr<MemoryStorage> storage_ = std::make_shared<MemoryStorage>("test");
  PartHeader header_{.step = 77,
                     .rank = 3,
                     .world_size = 8,
                     .attempt = "0123456789abcdef-77-2",
                     .is_indexed = true};
};

TEST_F(IndexedPartTest, SectionsHaveAllChunksInTheOrderOfKeysAndWholeTensors) {
  Write(100, 7);

  CAIRN_ASSERT_OK_AND_ASSIGN(const auto sections, ReadIndex());

  EXPECT_GT(sections.size(), 20u);
  std::vector<std::string> keys;
  for (const PartSection& section : sections) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto own, ReadKeys(section));
    ASSERT_EQ(own.size(), section.chunk_count);
    EXPECT_TRUE(own.front().starts_with(section.first));
    EXPECT_TRUE(own.back().starts_with(section.last));
    EXPECT_TRUE(keys.empty() || !keys.back().starts_with(section.first));
    keys.insert(keys.end(), own.begin(), own.end());
  }
  EXPECT_EQ(keys.size(), 700u);
  EXPECT_TRUE(std::ranges::is_sorted(keys));
}

TEST_F(IndexedPartTest, PartWithoutChunksHasNoSections) {
  Write(0, 0);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto sections, ReadIndex());
  EXPECT_THAT(sections, IsEmpty());
}

TEST_F(IndexedPartTest, IsNotReadAsAPartWithoutAnIndex) {
  Write(2, 2);
  header_.is_indexed = false;
  EXPECT_THAT(ReadIndex(), IsError(ErrorCode::kDataLoss, "another rank, attempt or store"));
}

TEST(PartSectionTest, EntryThatNoWriterWritesIsRefused) {
  const PartSection section = Section(1, 2, 20);
  std::vector<std::byte> value = EncodeSection(section);
  CAIRN_EXPECT_OK(DecodeSection(section.first, value));
  EXPECT_THAT(DecodeSection(Name(3), value), IsError(ErrorCode::kDataLoss, "before it begins"));
  value[4] = std::byte{1};
  EXPECT_THAT(DecodeSection(section.first, value), IsError(ErrorCode::kDataLoss, "must be zero"));
}

TEST_F(IndexedPartTest, DamagedOrForeignSectionsAreRefused) {
  Write(50, 10);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto sections, ReadIndex());

  PartSection wrong_count = sections[1];
  ++wrong_count.chunk_count;
  EXPECT_THAT(ReadKeys(wrong_count), IsError(ErrorCode::kDataLoss, "index does not match"));
  PartSection wrong_offset = sections[1];
  ++wrong_offset.offset_bytes;
  EXPECT_THAT(ReadKeys(wrong_offset), IsError(ErrorCode::kDataLoss, "damaged"));

  const std::string name = PartDataName(kName, 0);
  CAIRN_ASSERT_OK_AND_ASSIGN(auto bytes, storage_->Read(name, 1 << 20));
  bytes[sections[1].offset_bytes + 30] ^= std::byte{1};
  CAIRN_ASSERT_OK(storage_->Put(name, bytes));
  EXPECT_THAT(ReadKeys(sections[1]), IsError(ErrorCode::kDataLoss, "checksum"));
  CAIRN_EXPECT_OK(ReadKeys(sections[2]));
}

}  // namespace
}  // namespace cairn::kv::internal
