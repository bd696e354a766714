// Parts are read as they were written, and every damage to them is refused.

#include "kv/commit/internal/part_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#define XXH_STATIC_LINKING_ONLY  // for XXH3_64bits_withSeed
#include <xxhash.h>

#include "kv/base/digest.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "schema/little_endian.h"
#include "tests/kv/sample_step.h"
#include "tests/support/result_matchers.h"
#include "tests/support/seeded_random.h"

namespace cairn::kv::internal {
namespace {

using cairn::testing::IsError;
using cairn::testing::SeededRandom;
using schema::PutLittleEndian;
using testing::RandomBytes;

constexpr char kName[] = "pending/0123456789abcdef-77-2/3.part";

struct Entry {
  Column column;
  std::string key;
  std::vector<std::byte> value;
  friend bool operator==(const Entry&, const Entry&) = default;
};

class PartFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    header_.store_uuid.fill(std::byte{9});
    entries_ = {{Column::kTensors, FqnKey("w"), RandomBytes(1, 40)},
                {Column::kChunks, ChunkKey("w", std::vector<uint64_t>{0, 4}), RandomBytes(2, 100)},
                {Column::kValues, FqnKey("lr"), {}},
                {Column::kStructures, "", RandomBytes(3, 1000)}};
  }

  Result<void> Write() {
    PartWriter writer(storage_, kName, header_);
    for (const Entry& entry : entries_) {
      CAIRN_TRY(writer.Add(entry.column, entry.key, entry.value));
    }
    return writer.Finish();
  }
  Result<std::vector<Entry>> Read() { return ReadAs(header_); }
  Result<std::vector<Entry>> ReadAs(const PartHeader& expected) {
    std::vector<Entry> entries;
    CAIRN_TRY(ReadPart(*storage_, kName, expected, [&](const RecordView& record) -> Result<void> {
      entries.push_back(
          {record.column, std::string(record.key), {record.value.begin(), record.value.end()}});
      return {};
    }));
    return entries;
  }
  std::vector<std::byte> Object() { return storage_->Read(kName, 1 << 30).value(); }
  void Replace(std::span<const std::byte> bytes) { CAIRN_ASSERT_OK(storage_->Put(kName, bytes)); }
  /// Replaces the object after a change of its header, whose checksum is made right again.
  void ReplaceHeader(std::vector<std::byte> bytes) {
    PutLittleEndian(bytes, kPartHeaderBytes - 8,
                    Checksum64(std::span(bytes).first(kPartHeaderBytes - 8)));
    Replace(bytes);
  }

  std::shared_ptr<MemoryStorage> storage_ = std::make_shared<MemoryStorage>("test");
  PartHeader header_{.step = 77,
                     .rank = 3,
                     .world_size = 8,
                     .created_unix_ns = 123'456'789,
                     .attempt = "0123456789abcdef-77-2"};
  std::vector<Entry> entries_;
};

TEST_F(PartFileTest, ReadReturnsWhatWasWritten) {
  CAIRN_ASSERT_OK(Write());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto entries, Read());
  EXPECT_EQ(entries, entries_);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto names, storage_->List("pending/"));
  EXPECT_THAT(names, ::testing::ElementsAre(kName));
}

TEST_F(PartFileTest, EmptyPartIsRead) {
  entries_.clear();
  CAIRN_ASSERT_OK(Write());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto entries, Read());
  EXPECT_EQ(entries, entries_);
}

TEST_F(PartFileTest, ReadReturnsManyBlocks) {
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

TEST_F(PartFileTest, DifferentPartOfTheSameNameIsAConflict) {
  CAIRN_ASSERT_OK(Write());
  const std::vector<Entry> first = entries_;
  entries_[1].value = RandomBytes(4, 100);  // incompressible, so the objects have the same length
  const std::vector<std::byte> object = Object();
  EXPECT_THAT(Write(), IsError(ErrorCode::kConflict, ""));
  EXPECT_EQ(Object(), object);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto entries, Read());
  EXPECT_EQ(entries, first);
}

TEST_F(PartFileTest, PutWhoseResponseWasLostSucceeds) {
  CAIRN_ASSERT_OK(Write());
  const std::vector<std::byte> object = Object();
  CAIRN_ASSERT_OK(Write());
  EXPECT_EQ(Object(), object);
}

TEST_F(PartFileTest, AbsentPartIsNotFound) {
  EXPECT_THAT(Read(), IsError(ErrorCode::kNotFound, ""));
}

/// Parts of which the compressed blocks exceed one object.
class LargePartTest : public PartFileTest {
 protected:
  void SetUp() override {
    PartFileTest::SetUp();
    entries_.clear();
    for (uint64_t i = 0; i < 67; ++i) {
      entries_.push_back({Column::kChunks, ChunkKey("w", std::vector{i}), RandomBytes(i, 2 << 20)});
    }
    CAIRN_ASSERT_OK(Write());
  }
  /// The first and the second object of blocks.
  const std::string data_[2] = {PartDataName(kName, 0), PartDataName(kName, 1)};
};

TEST_F(LargePartTest, IsSeveralObjectsOfLimitedSize) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto names, storage_->List("pending/"));
  EXPECT_THAT(names, ::testing::UnorderedElementsAre(kName, data_[0], data_[1]));
  for (const std::string& name : names) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const uint64_t size_bytes, storage_->Size(name));
    EXPECT_LE(size_bytes, kMaxPartBytes + (3 << 20)) << name;
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto entries, Read());
  EXPECT_TRUE(entries == entries_);
  EXPECT_TRUE(HasDataObjects(Object()));
}

TEST_F(LargePartTest, MissingSwappedOrDamagedObjectsAreRefused) {
  std::vector<std::byte> data[2];
  for (const int i : {0, 1}) data[i] = storage_->Read(data_[i], 1 << 30).value();

  CAIRN_ASSERT_OK(storage_->Remove(data_[1]));
  EXPECT_FALSE(Read());
  data[1][data[1].size() / 2] ^= std::byte{1};
  CAIRN_ASSERT_OK(storage_->Put(data_[1], data[1]));
  EXPECT_THAT(Read(), IsError(ErrorCode::kDataLoss, data_[1]));
  data[1][data[1].size() / 2] ^= std::byte{1};
  CAIRN_ASSERT_OK(storage_->Put(data_[1], std::span(data[1]).first(data[1].size() - 1)));
  EXPECT_THAT(Read(), IsError(ErrorCode::kDataLoss, data_[1]));
  CAIRN_ASSERT_OK(storage_->Put(data_[1], {}));  // all its blocks are missing
  EXPECT_THAT(Read(), IsError(ErrorCode::kDataLoss, "end of the part"));
  CAIRN_ASSERT_OK(storage_->Put(data_[1], data[1]));
  CAIRN_EXPECT_OK(Read());
}

TEST_F(PartFileTest, EveryFlippedByteIsRefused) {
  CAIRN_ASSERT_OK(Write());
  std::vector<std::byte> bytes = Object();
  for (size_t at = 0; at < bytes.size(); ++at) {
    bytes[at] ^= std::byte{0x10};
    Replace(bytes);
    ASSERT_THAT(Read(), IsError(ErrorCode::kDataLoss, kName)) << "byte " << at;
    bytes[at] ^= std::byte{0x10};
  }
}

TEST_F(PartFileTest, EveryTruncationIsRefused) {
  CAIRN_ASSERT_OK(Write());
  const std::vector<std::byte> bytes = Object();
  for (size_t size = 0; size < bytes.size(); ++size) {
    Replace(std::span(bytes).first(size));
    ASSERT_THAT(Read(), IsError(ErrorCode::kDataLoss, kName)) << size << " bytes left";
  }
}

TEST_F(PartFileTest, BytesAfterTheEndAreRefused) {
  CAIRN_ASSERT_OK(Write());
  std::vector<std::byte> bytes = Object();
  bytes.push_back(std::byte{0});
  Replace(bytes);
  EXPECT_THAT(Read(), IsError(ErrorCode::kDataLoss, "end"));
}

TEST_F(PartFileTest, RandomBytesWithARightHeaderAreRefused) {
  CAIRN_ASSERT_OK(Write());
  const std::vector<std::byte> good = Object();
  SeededRandom random;
  for (int round = 0; round < 500; ++round) {
    std::vector<std::byte> bytes(good.begin(), good.begin() + kPartHeaderBytes);
    bytes.resize(kPartHeaderBytes + random.Between(0, 200));
    random.Fill(std::span(bytes).subspan(kPartHeaderBytes));
    // Half of them have a plausible header of a block.
    if (round % 2 == 0 && bytes.size() >= kPartHeaderBytes + 24) {
      PutLittleEndian<uint32_t>(bytes, kPartHeaderBytes, 100);
      PutLittleEndian<uint32_t>(bytes, kPartHeaderBytes + 8,
                                static_cast<uint32_t>(bytes.size() - kPartHeaderBytes - 24));
      PutLittleEndian<uint32_t>(bytes, kPartHeaderBytes + 12, 0);
    }
    Replace(bytes);
    ASSERT_THAT(Read(), IsError(ErrorCode::kDataLoss, kName));
  }
}

TEST_F(PartFileTest, ClaimedBytesAreThoseOfTheBlocksInThePart) {
  uint64_t entry_bytes = 0;
  for (const Entry& entry : entries_) entry_bytes += 12 + entry.key.size() + entry.value.size();
  CAIRN_ASSERT_OK(Write());
  std::vector<std::byte> bytes = Object();
  EXPECT_EQ(ClaimedBytes(bytes), entry_bytes + 8);  // with the end block
  EXPECT_FALSE(HasDataObjects(bytes));
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_LE(ClaimedBytes(std::span(bytes).first(size)), entry_bytes + 8);
  }
  PutLittleEndian<uint32_t>(bytes, kPartHeaderBytes, 0xffffffff);
  EXPECT_EQ(ClaimedBytes(bytes), 0xffffffff + uint64_t{8});
}

TEST_F(PartFileTest, BlockThatClaimsToBeHugeAllocatesNothing) {
  CAIRN_ASSERT_OK(Write());
  std::vector<std::byte> bytes = Object();
  for (const uint32_t huge : {0xffffffffu, (1u << 30) + 1}) {
    PutLittleEndian<uint32_t>(bytes, kPartHeaderBytes, huge);
    Replace(bytes);
    EXPECT_THAT(Read(), IsError(ErrorCode::kDataLoss, "longer than the object"));
  }
}

TEST_F(PartFileTest, BlockThatIsTooShortForItsContentsAllocatesNothing) {
  CAIRN_ASSERT_OK(Write());
  std::vector<std::byte> bytes = Object();
  constexpr uint32_t kPayloadBytes = 1u << 30;  // of about 1 KiB that is stored
  PutLittleEndian(bytes, kPartHeaderBytes, kPayloadBytes);
  const auto entry_count = schema::GetLittleEndian<uint32_t>(bytes, kPartHeaderBytes + 4);
  const auto stored_bytes = schema::GetLittleEndian<uint32_t>(bytes, kPartHeaderBytes + 8);
  PutLittleEndian<uint64_t>(bytes, kPartHeaderBytes + 16,
                            XXH3_64bits_withSeed(bytes.data() + kPartHeaderBytes + 24, stored_bytes,
                                                 (uint64_t{kPayloadBytes} << 32) | entry_count));
  Replace(bytes);
  EXPECT_THAT(Read(), IsError(ErrorCode::kDataLoss, "too short for its contents"));
}

TEST_F(PartFileTest, HeaderThatClaimsManyObjectsIsRefused) {
  CAIRN_ASSERT_OK(Write());
  std::vector<std::byte> bytes = Object();
  PutLittleEndian<uint32_t>(bytes, 20, 0xffffffff);
  ReplaceHeader(bytes);
  EXPECT_THAT(Read(), IsError(ErrorCode::kDataLoss, "too many objects"));
  PutLittleEndian<uint32_t>(bytes, 20, 1);
  ReplaceHeader(bytes);
  EXPECT_FALSE(Read());
}

TEST_F(PartFileTest, NewerVersionIsUnimplementedNotDamaged) {
  CAIRN_ASSERT_OK(Write());
  std::vector<std::byte> bytes = Object();
  PutLittleEndian<uint32_t>(bytes, 8, kPartVersion + 1);
  ReplaceHeader(bytes);
  EXPECT_THAT(Read(), IsError(ErrorCode::kUnimplemented, "version 3"));
}

TEST_F(PartFileTest, PartOfAnotherRankAttemptStepOrStoreIsRefused) {
  CAIRN_ASSERT_OK(Write());
  PartHeader others[4] = {header_, header_, header_, header_};
  others[0].rank = 4;
  others[1].attempt = "0123456789abcdef-77-3";
  others[2].step = 78;
  others[3].world_size = 9;
  for (const PartHeader& other : others) {
    EXPECT_THAT(ReadAs(other), IsError(ErrorCode::kDataLoss, "another rank or attempt"));
  }
  PartHeader of_other_store = header_;
  of_other_store.store_uuid.fill(std::byte{8});
  EXPECT_THAT(ReadAs(of_other_store), IsError(ErrorCode::kConflict, "was replaced by another one"));
  PartHeader later = header_;  // the time and the number of objects are not compared
  later.created_unix_ns = 5;
  later.data_objects = 7;
  CAIRN_EXPECT_OK(ReadAs(later));
}

TEST_F(PartFileTest, ErrorOfTheCallbackEndsTheRead) {
  CAIRN_ASSERT_OK(Write());
  int calls = 0;
  const auto result = ReadPart(*storage_, kName, header_, [&](const RecordView&) -> Result<void> {
    ++calls;
    return Fail(ErrorCode::kCancelled, "enough");
  });
  EXPECT_THAT(result, IsError(ErrorCode::kCancelled, "enough"));
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace cairn::kv::internal
