// Runs return the records that were written, and notice if their object has changed.

#include "kv/table/internal/record_run.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kv/storage/files/internal/memory_storage.h"
#include "tests/kv/sample_step.h"
#include "tests/support/result_matchers.h"

namespace cairn::kv::internal {
namespace {

using cairn::testing::IsError;
using testing::RandomBytes;

struct OwnedRecord {
  std::string key;
  std::vector<std::byte> value;
  friend bool operator==(const OwnedRecord&, const OwnedRecord&) = default;
};

class RecordRunTest : public ::testing::Test {
 protected:
  static Result<RecordRun> Write(const std::vector<OwnedRecord>& records, RecordRunWriter& writer) {
    for (const auto& [key, value] : records) CAIRN_TRY(writer.Add({.key = key, .value = value}));
    return writer.Finish();
  }
  /// Writes the records to an object.
  Result<RecordRun> Write(const std::vector<OwnedRecord>& records) {
    CAIRN_TRY_ASSIGN(RecordRunWriter writer, RecordRunWriter::Create(*storage_, NewObjectId(1)));
    return Write(records, writer);
  }
  Result<std::vector<OwnedRecord>> Read(const RecordRun& run) {
    std::vector<OwnedRecord> records;
    CAIRN_TRY_ASSIGN(RecordRunReader reader, RecordRunReader::Open(storage_, run));
    while (reader.Valid()) {
      const auto& [key, value] = reader.record();
      EXPECT_EQ(reinterpret_cast<uintptr_t>(value.data()) % 8, 0u);
      records.push_back({.key = std::string(key), .value = {value.begin(), value.end()}});
      CAIRN_TRY(reader.Next());
    }
    return records;
  }
  /// Writes the records to an object and to two runs in memory, and reads them again.
  void ExpectSame(const std::vector<OwnedRecord>& records) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const RecordRun in_object, Write(records));
    RecordRunWriter writer;
    CAIRN_ASSERT_OK_AND_ASSIGN(const RecordRun first, Write(records, writer));
    EXPECT_EQ(writer.size_bytes(), 0u);
    CAIRN_ASSERT_OK_AND_ASSIGN(const RecordRun second, Write(records, writer));
    for (const RecordRun* run : {&in_object, &first, &second}) {
      EXPECT_EQ(run->size_bytes(), in_object.size_bytes());
      CAIRN_ASSERT_OK_AND_ASSIGN(const std::vector<OwnedRecord> read, Read(*run));
      EXPECT_TRUE(read == records);
    }
  }

  std::shared_ptr<MemoryStorage> storage_ = std::make_shared<MemoryStorage>("test");
};

/// Records of one length that differ a little, like those of the chunks of a tensor.
std::vector<OwnedRecord> SimilarRecords(uint64_t count, size_t value_bytes) {
  std::vector<OwnedRecord> records;
  std::vector<std::byte> value = RandomBytes(1, value_bytes);
  for (uint64_t i = 0; i < count; ++i) {
    value[i * 7 % value_bytes] ^= std::byte{static_cast<uint8_t>(i)};
    value.back() ^= std::byte{static_cast<uint8_t>(i >> 8)};
    records.push_back({.key = "tensor." + NumberKey(i), .value = value});
  }
  return records;
}

// 63 words are the most of which a mask states which of them differ: key 2, value 61.
TEST_F(RecordRunTest, SimilarRecordsOfAnyLength) {
  for (const size_t value_bytes : {1, 7, 8, 9, 480, 481, 488, 489, 5000}) {
    SCOPED_TRACE(value_bytes);
    ExpectSame(SimilarRecords(100, value_bytes));
  }
}

TEST_F(RecordRunTest, NoRecords) { ExpectSame({}); }

TEST_F(RecordRunTest, LengthsChange) {
  std::vector<OwnedRecord> records = SimilarRecords(10, 100);
  records[5].value.resize(99);
  records[6].key += 'x';
  records[7].key.clear();
  records[8].value.clear();  // a tombstone
  ExpectSame(records);
}

// Equal lengths of the key and value together, but the value begins elsewhere.
TEST_F(RecordRunTest, KeyBecomesShorterAndValueLonger) {
  ExpectSame({{.key = std::string(16, 'a'), .value = RandomBytes(1, 8)},
              {.key = std::string(8, 'b'), .value = RandomBytes(2, 16)},
              {.key = std::string(9, 'c'), .value = RandomBytes(3, 15)}});
}

TEST_F(RecordRunTest, RunHasManyBlocks) {
  ExpectSame(SimilarRecords(3000, 3000));
  CAIRN_ASSERT_OK_AND_ASSIGN(const RecordRun run, Write(SimilarRecords(3000, 3000)));
  EXPECT_GE(run.blocks.size(), 3u);
}

// 3 MiB are longer than a block should be.
TEST_F(RecordRunTest, LongRecordHasABlockOfItsOwn) {
  ExpectSame({{.key = "a", .value = RandomBytes(1, 10)},
              {.key = "b", .value = RandomBytes(2, 3 << 20)},
              {.key = "c", .value = RandomBytes(3, 10)}});
}

TEST_F(RecordRunTest, SimilarRecordsTakeLittleSpace) {
  const std::vector<OwnedRecord> records = SimilarRecords(1000, 144);
  CAIRN_ASSERT_OK_AND_ASSIGN(const RecordRun run, Write(records));
  ASSERT_EQ(run.blocks.size(), 1u);
  // A mask and at most three words: one of the key, two of the value.
  EXPECT_LE(run.blocks.front().size_bytes, 1000u * 40);
}

TEST_F(RecordRunTest, EachChangedByteIsDamage) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const RecordRun run, Write(SimilarRecords(20, 30)));
  const std::string name = ObjectName(ObjectKind::kTable, *run.id);
  CAIRN_ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> written, storage_->Read(name, 1 << 20));
  for (size_t i = 0; i < written.size(); ++i) {
    std::vector<std::byte> changed = written;
    changed[i] ^= std::byte{0x40};
    CAIRN_ASSERT_OK(storage_->Put(name, changed));
    ASSERT_THAT(Read(run), IsError(ErrorCode::kDataLoss, "not those that were written")) << i;
  }
  CAIRN_ASSERT_OK(storage_->Put(name, std::span(written).first(written.size() - 1)));
  EXPECT_THAT(Read(run), IsError(ErrorCode::kDataLoss, ""));
}

}  // namespace
}  // namespace cairn::kv::internal
