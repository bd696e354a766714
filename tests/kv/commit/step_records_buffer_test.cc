// Records are returned in the order of their keys, whether they fit into memory or not.

#include "kv/commit/internal/step_records_buffer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "kv/storage/files/internal/memory_storage.h"
#include "tests/kv/sample_step.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/result_matchers.h"
#include "tests/support/seeded_random.h"

namespace cairn::kv::internal {
namespace {

using cairn::testing::IsError;
using cairn::testing::SeededRandom;
using testing::RandomBytes;

using Records = std::map<std::pair<Column, std::string>, std::vector<std::byte>>;

/// Returns `count` records with values of up to 1000 bytes.
Records SomeRecords(int count) {
  constexpr Column kColumns[] = {Column::kChunks, Column::kTensors, Column::kStructures,
                                 Column::kSegments};
  SeededRandom random;
  Records records;
  for (int i = 0; i < count; ++i) {
    const std::string key = ChunkKey(fmt::format("tensor{}", random.Between(0, 20)),
                                     std::array{random.Between(0, 1'000'000'000)});
    records[{kColumns[random.Between(0, 3)], key}] =
        RandomBytes(static_cast<uint64_t>(i), random.Between(1, 1000));
  }
  return records;
}

/// Adds the records in another order than that of their keys.
Result<void> AddAll(StepRecordsBuffer& buffer, const Records& records) {
  std::vector<const Records::value_type*> order;
  for (const auto& record : records) order.push_back(&record);
  std::ranges::sort(order, {}, [](const auto* record) { return record->second; });
  for (const auto* record : order) {
    CAIRN_TRY(buffer.Add(record->first.first, record->first.second, record->second));
  }
  return {};
}

Result<Records> ReadAll(StepRecordsBuffer& buffer) {
  Records records;
  CAIRN_TRY(buffer.ForEachInOrder([&](const RecordView& record) -> Result<void> {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(record.value.data()) % 8, 0u);
    const auto [added, is_new] = records.insert(
        {{record.column, std::string(record.key)}, {record.value.begin(), record.value.end()}});
    EXPECT_TRUE(is_new);
    EXPECT_EQ(std::next(added), records.end()) << "not in order";
    return {};
  }));
  return records;
}

class StepRecordsBufferTest : public ::testing::Test {
 protected:
  size_t TableCount() { return storage_->List("tables/").value().size(); }
  std::shared_ptr<MemoryStorage> storage_ = std::make_shared<MemoryStorage>("test");
};

TEST_F(StepRecordsBufferTest, NothingIsSpilledThatFitsIntoMemory) {
  const Records records = SomeRecords(2000);
  StepRecordsBuffer buffer(storage_, 1);
  CAIRN_ASSERT_OK(AddAll(buffer, records));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Records read, ReadAll(buffer));
  EXPECT_TRUE(read == records);
  EXPECT_EQ(TableCount(), 0u);
}

TEST_F(StepRecordsBufferTest, RecordsMayBeginInOrder) {
  const Records records = SomeRecords(2000);
  // As of one rank, and as of one rank and then another.
  for (const int stride : {1, 2}) {
    StepRecordsBuffer buffer(storage_, 1);
    for (int first = 0; first < stride; ++first) {
      int i = 0;
      for (const auto& [key, value] : records) {
        if (i++ % stride == first) {
          CAIRN_ASSERT_OK(buffer.Add(key.first, key.second, value));
        }
      }
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(const Records read, ReadAll(buffer));
    EXPECT_TRUE(read == records) << stride;
  }
}

/// Adds chunks of `name` in one block. Their keys are the offsets and the bytes of the offset.
Result<void> AddBlock(StepRecordsBuffer& buffer, const std::string& name,
                      std::span<const uint64_t> offsets, Records& records) {
  size_t block_bytes = 0;
  std::vector<std::string> keys;
  for (const uint64_t offset : offsets) {
    keys.push_back(NumberKey(offset));
    block_bytes += StoredRecord::Size(8, 8);
  }
  auto block = std::make_unique<uint64_t[]>(block_bytes / 8);
  auto* next = reinterpret_cast<std::byte*>(block.get());
  CollectedRecords::Chunks chunks{.name = name, .begin = next};
  for (const std::string& key : keys) {
    const auto value = std::as_bytes(std::span(key));
    if (chunks.last != nullptr && key < StoredRecord(chunks.last).key()) chunks.is_in_order = false;
    StoredRecord::Write(next, key, value);
    records[{Column::kChunks, name + key}] = {value.begin(), value.end()};
    chunks.last = next;
    next += StoredRecord(next).size_bytes();
  }
  chunks.end = next;
  return buffer.AddChunks(std::move(block), block_bytes, {&chunks, 1});
}

TEST_F(StepRecordsBufferTest, BlocksOfChunksFollowRecordsInAnyOrder) {
  // The last two blocks of "b" are not in order, neither with each other nor by themselves.
  for (const uint64_t memory_bytes : {StepRecordsBuffer::kMemoryBytes, uint64_t{200}}) {
    const std::string a = FqnKey("a"), b = FqnKey("b"), c = FqnKey("c");
    StepRecordsBuffer buffer(storage_, 1, memory_bytes);
    Records records;
    for (const std::string& name : {a, b}) {
      const std::string key = name + NumberKey(1);
      records[{Column::kChunks, key}] = RandomBytes(1, 30);
      CAIRN_ASSERT_OK(buffer.Add(Column::kChunks, key, RandomBytes(1, 30)));
    }
    CAIRN_ASSERT_OK(AddBlock(buffer, c, std::array<uint64_t, 2>{5, 6}, records));
    CAIRN_ASSERT_OK(AddBlock(buffer, a, std::array<uint64_t, 2>{2, 300}, records));
    CAIRN_ASSERT_OK(AddBlock(buffer, b, std::array<uint64_t, 3>{7, 9, 8}, records));
    CAIRN_ASSERT_OK(AddBlock(buffer, b, std::array<uint64_t, 2>{2, 3}, records));
    const std::string key = a + NumberKey(100);
    records[{Column::kChunks, key}] = RandomBytes(2, 3);
    CAIRN_ASSERT_OK(buffer.Add(Column::kChunks, key, RandomBytes(2, 3)));
    CAIRN_ASSERT_OK_AND_ASSIGN(const Records read, ReadAll(buffer));
    EXPECT_TRUE(read == records) << memory_bytes;
  }
}

// The key of a segment may contain NUL anywhere, or nowhere.
TEST_F(StepRecordsBufferTest, KeysWithoutANameAreSorted) {
  for (const Column column : {Column::kSegments, Column::kChunks}) {
    StepRecordsBuffer buffer(storage_, 1);
    Records records;
    for (const std::string_view key : {std::string_view("b\0a", 3), std::string_view("b"),
                                       std::string_view("a\0", 2), std::string_view("\0", 1)}) {
      records[{column, std::string(key)}] = RandomBytes(1, 5);
      CAIRN_ASSERT_OK(buffer.Add(column, key, RandomBytes(1, 5)));
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(const Records read, ReadAll(buffer));
    EXPECT_TRUE(read == records);
  }
}

TEST_F(StepRecordsBufferTest, SpilledRecordsAreMerged) {
  const Records records = SomeRecords(2000);
  {
    StepRecordsBuffer buffer(storage_, 1, /*memory_bytes=*/400'000);
    CAIRN_ASSERT_OK(AddAll(buffer, records));
    EXPECT_GE(TableCount(), 2u);
    CAIRN_ASSERT_OK_AND_ASSIGN(const Records read, ReadAll(buffer));
    EXPECT_TRUE(read == records);
  }
  EXPECT_EQ(TableCount(), 0u) << "spilled tables remain";
}

// A step has few tables, but the records of a large step are spilled to many.
TEST_F(StepRecordsBufferTest, MoreTablesAreMergedThanAStepMayHave) {
  const Records records = SomeRecords(2000);
  StepRecordsBuffer buffer(storage_, 1, /*memory_bytes=*/40'000);
  CAIRN_ASSERT_OK(AddAll(buffer, records));
  EXPECT_GT(TableCount(), 8u);
  CAIRN_ASSERT_OK_AND_ASSIGN(const Records read, ReadAll(buffer));
  EXPECT_TRUE(read == records);
}

TEST_F(StepRecordsBufferTest, AllRecordsMayBeSpilledBeforeTheyAreRead) {
  StepRecordsBuffer buffer(storage_, 1, /*memory_bytes=*/1000);
  const std::vector<std::byte> value = RandomBytes(1, 2000);
  CAIRN_ASSERT_OK(buffer.Add(Column::kChunks, "b", value));
  CAIRN_ASSERT_OK(buffer.Add(Column::kChunks, "a", value));
  EXPECT_EQ(TableCount(), 2u);
  CAIRN_ASSERT_OK_AND_ASSIGN(const Records read, ReadAll(buffer));
  EXPECT_TRUE(read == (Records{{{Column::kChunks, "a"}, value}, {{Column::kChunks, "b"}, value}}));
}

TEST_F(StepRecordsBufferTest, EachFailedCallOfTheStorageIsReported) {
  const Records records = SomeRecords(300);
  const auto run = [&](FaultyStorage& storage) -> Result<Records> {
    const std::shared_ptr<Storage> borrowed(&storage, [](Storage*) {});
    StepRecordsBuffer buffer(borrowed, 1, /*memory_bytes=*/60'000);
    CAIRN_TRY(AddAll(buffer, records));
    return ReadAll(buffer);
  };
  FaultyStorage counted(std::make_shared<MemoryStorage>("test"));
  CAIRN_ASSERT_OK(run(counted));
  for (const StorageCall& call : counted.Log()) {
    if (call.operation == StorageOperation::kRemove) continue;  // best effort
    FaultyStorage faulty(std::make_shared<MemoryStorage>("test"));
    faulty.SetPlan(FaultAt(call.index, StorageFault::kRefuse));
    EXPECT_THAT(run(faulty), IsError(ErrorCode::kUnavailable, "")) << call.index;
  }
}

}  // namespace
}  // namespace cairn::kv::internal
