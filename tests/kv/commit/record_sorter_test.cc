// Records are returned in the order of their keys, whether they fit into memory or not.

#include "kv/commit/internal/record_sorter.h"

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

using Records = std::map<std::string, std::vector<std::byte>>;

/// Returns `count` records with values of up to 1000 bytes.
Records SomeRecords(int count) {
  constexpr Column kColumns[] = {Column::kChunks, Column::kTensors, Column::kStructures,
                                 Column::kSegments};
  SeededRandom random;
  Records records;
  for (int i = 0; i < count; ++i) {
    const std::string key = ChunkKey(fmt::format("tensor{}", random.Between(0, 20)),
                                     std::array{random.Between(0, 1'000'000'000)});
    records[TableKey(kColumns[random.Between(0, 3)], key)] =
        RandomBytes(static_cast<uint64_t>(i), random.Between(1, 1000));
  }
  return records;
}

/// Adds the records in another order than that of their keys.
Result<void> AddAll(RecordSorter& sorter, const Records& records) {
  std::vector<const Records::value_type*> order;
  for (const auto& record : records) order.push_back(&record);
  std::ranges::sort(order, {}, [](const auto* record) { return record->second; });
  for (const auto* record : order) {
    CAIRN_TRY(sorter.Add({.key = record->first, .value = record->second}));
  }
  return {};
}

Result<Records> ReadAll(RecordSorter& sorter) {
  Records records;
  CAIRN_TRY(sorter.ForEachInOrder([&](const TableRecord& record) -> Result<void> {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(record.value.data()) % 8, 0u);
    const auto [added, is_new] =
        records.insert({std::string(record.key), {record.value.begin(), record.value.end()}});
    EXPECT_TRUE(is_new);
    EXPECT_EQ(std::next(added), records.end()) << "not in order";
    return {};
  }));
  return records;
}

class RecordSorterTest : public ::testing::Test {
 protected:
  size_t TableCount() { return storage_->List("tables/").value().size(); }
  std::shared_ptr<MemoryStorage> storage_ = std::make_shared<MemoryStorage>("test");
};

/// Adds chunks of a tensor as a run in memory. Their values are the bytes of the offsets.
Result<void> AddRun(RecordSorter& sorter, const std::string& fqn, std::span<const uint64_t> offsets,
                    Records& records) {
  RecordRunWriter writer;
  for (const uint64_t offset : offsets) {
    const std::string key = TableKey(Column::kChunks, ChunkKey(fqn, {&offset, 1}));
    const auto value = std::as_bytes(std::span(&offset, 1));
    CAIRN_TRY(writer.Add({.key = key, .value = value}));
    records[key] = {value.begin(), value.end()};
  }
  CAIRN_TRY_ASSIGN(RecordRun run, writer.Finish());
  return sorter.AddRun(std::move(run));
}

TEST_F(RecordSorterTest, RunsAreMergedWithEachOtherAndWithRecords) {
  for (const uint64_t memory_bytes : {RecordSorter::kMemoryBytes, uint64_t{200}}) {
    RecordSorter sorter(storage_, 1, memory_bytes);
    Records records;
    const auto add = [&](const char* fqn, uint64_t offset) {
      const std::string key = TableKey(Column::kChunks, ChunkKey(fqn, {&offset, 1}));
      records[key] = RandomBytes(offset, 30);
      return sorter.Add({.key = key, .value = records[key]});
    };
    CAIRN_ASSERT_OK(add("a", 1));
    CAIRN_ASSERT_OK(add("b", 1));
    CAIRN_ASSERT_OK(AddRun(sorter, "c", std::array<uint64_t, 2>{5, 6}, records));
    CAIRN_ASSERT_OK(AddRun(sorter, "a", std::array<uint64_t, 2>{2, 300}, records));
    CAIRN_ASSERT_OK(AddRun(sorter, "a", {}, records));
    CAIRN_ASSERT_OK(AddRun(sorter, "b", std::array<uint64_t, 3>{7, 8, 9}, records));
    CAIRN_ASSERT_OK(AddRun(sorter, "b", std::array<uint64_t, 2>{2, 3}, records));
    CAIRN_ASSERT_OK(add("a", 100));
    CAIRN_ASSERT_OK_AND_ASSIGN(const Records read, ReadAll(sorter));
    EXPECT_TRUE(read == records) << memory_bytes;
  }
}

// The key of a segment may contain NUL anywhere, or nowhere.
TEST_F(RecordSorterTest, KeysWithoutANameAreSorted) {
  for (const Column column : {Column::kSegments, Column::kChunks}) {
    RecordSorter sorter(storage_, 1);
    Records records;
    for (const std::string_view key : {std::string_view("b\0a", 3), std::string_view("b"),
                                       std::string_view("a\0", 2), std::string_view("\0", 1)}) {
      records[TableKey(column, key)] = RandomBytes(1, 5);
      CAIRN_ASSERT_OK(sorter.Add({.key = TableKey(column, key), .value = RandomBytes(1, 5)}));
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(const Records read, ReadAll(sorter));
    EXPECT_TRUE(read == records);
  }
}

TEST_F(RecordSorterTest, RecordsThatDoNotFitIntoMemoryAreSpilledMergedAndRemoved) {
  const Records records = SomeRecords(2000);  // about a million bytes
  for (const uint64_t memory_bytes : {RecordSorter::kMemoryBytes, 400'000ul, 40'000ul}) {
    {
      RecordSorter sorter(storage_, 1, memory_bytes);
      CAIRN_ASSERT_OK(AddAll(sorter, records));
      EXPECT_GE(TableCount(), 800'000 / memory_bytes);
      EXPECT_EQ(TableCount() > 0, memory_bytes < RecordSorter::kMemoryBytes);
      CAIRN_ASSERT_OK_AND_ASSIGN(const Records read, ReadAll(sorter));
      EXPECT_TRUE(read == records);
    }
    EXPECT_EQ(TableCount(), 0u) << "spilled tables remain";
  }
}

// The blocks of a run have 2 MiB, and a record states which of at most 63 words differ from the one
// before it: one of the key, and 62 of a value of 496 bytes.
TEST_F(RecordSorterTest, RecordsOfAnyLengthAreSpilledAndRead) {
  Records records;
  const auto add = [&](std::string key, std::vector<std::byte> value) {
    records["\3" + std::to_string(records.size() + 1000) + std::move(key)] = std::move(value);
  };
  for (const uint64_t length : {1, 7, 8, 9, 488, 489, 496, 497, 5000, 3 << 20}) {
    std::vector<std::byte> value = RandomBytes(1, length);
    for (uint64_t i = 0; i < 50; ++i) {
      value[i * 7 % length] ^= static_cast<std::byte>(i);
      value.back() = static_cast<std::byte>(i);
      add("", value);
      if (length > 5000) break;
    }
  }
  // Equal lengths together, but the value begins elsewhere.
  add(std::string(16, 'a'), RandomBytes(1, 8));
  add(std::string(8, 'a'), RandomBytes(2, 16));
  for (const uint64_t memory_bytes : {RecordSorter::kMemoryBytes, uint64_t{1} << 20, uint64_t{1}}) {
    RecordSorter sorter(storage_, 1, memory_bytes);
    CAIRN_ASSERT_OK(AddAll(sorter, records));
    EXPECT_EQ(TableCount() > 0, memory_bytes < RecordSorter::kMemoryBytes);
    CAIRN_ASSERT_OK_AND_ASSIGN(const Records read, ReadAll(sorter));
    EXPECT_TRUE(read == records) << memory_bytes;
  }
}

TEST_F(RecordSorterTest, EachChangedByteOfASpilledRunIsDamage) {
  RecordSorter sorter(storage_, 1, /*memory_bytes=*/200);
  for (char name = 'a'; name <= 'z'; ++name) {
    CAIRN_ASSERT_OK(sorter.Add(
        {.key = TableKey(Column::kValues, std::string(1, name)), .value = RandomBytes(1, 9)}));
  }
  ASSERT_GT(TableCount(), 0u);
  const std::string run = storage_->List("tables/").value().front();
  const std::vector<std::byte> written = storage_->Read(run, 1 << 20).value();
  for (size_t i = 0; i < written.size(); ++i) {
    std::vector<std::byte> changed = written;
    changed[i] ^= std::byte{0x40};
    CAIRN_ASSERT_OK(storage_->Put(run, changed));
    ASSERT_THAT(ReadAll(sorter), IsError(ErrorCode::kDataLoss, "not those that were written")) << i;
  }
  CAIRN_ASSERT_OK(storage_->Put(run, std::span(written).first(written.size() - 1)));
  EXPECT_THAT(ReadAll(sorter), IsError(ErrorCode::kDataLoss, ""));
}

TEST_F(RecordSorterTest, EmptyValuesAreRefused) {
  RecordSorter sorter(storage_, 1);
  EXPECT_THAT(sorter.Add({.key = "\3a", .value = {}}),
              IsError(ErrorCode::kInvalidArgument, "empty"));
}

TEST_F(RecordSorterTest, EachFailedCallOfTheStorageIsReported) {
  const Records records = SomeRecords(300);
  const auto run = [&](FaultyStorage& storage) -> Result<Records> {
    const std::shared_ptr<Storage> borrowed(&storage, [](Storage*) {});
    RecordSorter sorter(borrowed, 1, /*memory_bytes=*/60'000);
    CAIRN_TRY(AddAll(sorter, records));
    return ReadAll(sorter);
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
