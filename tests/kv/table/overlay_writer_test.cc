// A save writes what differs, and the tables of a step stay few and small.

#include "kv/table/internal/overlay_writer.h"

#include "tests/kv/table/table_test_support.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/seeded_random.h"

namespace cairn::kv::internal {
namespace {

using cairn::testing::IsError;
using cairn::testing::SeededRandom;

constexpr char kLastKey[] = "zz";

/// Returns the ids of the tables as text.
std::string Ids(std::span<const TableInfo> tables) {
  std::string ids = "after";
  for (const TableInfo& table : tables) ids += fmt::format(" {:016x}", table.id.id);
  return ids;
}

/// Adds the tables that the step keeps as the last record.
Result<std::vector<TableInfo>> Finish(OverlayWriter& writer) {
  return writer.Finish([](std::span<const TableInfo> kept) {
    const std::string ids = Ids(kept);
    return std::vector<std::byte>(Bytes(ids).begin(), Bytes(ids).end());
  });
}

Result<std::vector<TableInfo>> Save(Storage& storage, const TableStack& base,
                                    const Records& records) {
  CAIRN_TRY_ASSIGN(const auto writer,
                   OverlayWriter::Create(storage, NewObjectId(1), base, kLastKey));
  for (const auto& [key, value] : records) CAIRN_TRY(writer->Add(key, Bytes(value)));
  return Finish(*writer);
}

/// Returns the records without the last one.
Result<Records> ScanWithoutLast(const TableStack& stack) {
  CAIRN_TRY_ASSIGN(Records records, ScanAll(stack));
  EXPECT_EQ(records.erase(kLastKey), 1u);
  return records;
}

class OverlayWriterTest : public TableStorageTest {
 protected:
  Result<TableStack> SaveAndOpen(const TableStack& base, const Records& records) {
    CAIRN_TRY_ASSIGN(const auto tables, Save(*storage(), base, records));
    return Open(tables);
  }
  /// Opens the tables, and checks that the newest one names the others.
  Result<TableStack> Open(const std::vector<TableInfo>& tables) {
    CAIRN_TRY_ASSIGN(TableStack stack, TableStack::Open(storage(), tables));
    CAIRN_TRY_ASSIGN(const auto last, stack.tables().front()->Get(kLastKey));
    EXPECT_EQ(last ? Text(*last) : "", Ids(std::span(tables).subspan(1)));
    return stack;
  }
};
CAIRN_INSTANTIATE_STORAGES(OverlayWriterTest);

Records Numbered(int count, const std::string& value) {
  Records records;
  for (int i = 0; i < count; ++i) records.emplace(fmt::format("key{:06}", i), value);
  return records;
}

/// Returns the numbers of records without the last ones.
std::vector<uint64_t> Counts(const TableStack& stack) {
  std::vector<uint64_t> counts;
  for (const auto& table : stack.tables()) counts.push_back(table->info().record_count - 1);
  return counts;
}

TEST_P(OverlayWriterTest, FirstStepIsOneCompleteTable) {
  const Records records = Numbered(1000, "value");

  CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack stack, SaveAndOpen({}, records));

  EXPECT_THAT(Counts(stack), ::testing::ElementsAre(1000));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Records read, ScanWithoutLast(stack));
  EXPECT_EQ(read, records);
}

TEST_P(OverlayWriterTest, OnlyDifferencesAreWritten) {
  Records records = Numbered(1000, "value");
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack base, SaveAndOpen({}, records));
  records["key000500"] = "changed";
  records["key000500b"] = "added";
  records.erase("key000999");

  CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack stack, SaveAndOpen(base, records));

  EXPECT_THAT(Counts(stack), ::testing::ElementsAre(3, 1000));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Records newest, ReadAll(*stack.tables()[0]));
  EXPECT_EQ(newest, (Records{{"key000500", "changed"},
                             {"key000500b", "added"},
                             {"key000999", ""},
                             {kLastKey, Ids({&stack.tables()[1]->info(), 1})}}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Records read, ScanWithoutLast(stack));
  EXPECT_EQ(read, records);
}

TEST_P(OverlayWriterTest, RecordsAreKeptWithoutAComparison) {
  for (const int count : {3, 1000}) {  // with few records, the new table is a complete one
    SCOPED_TRACE(count);
    Records records = Numbered(count, "value");
    records["first"] = "1";
    CAIRN_ASSERT_OK_AND_ASSIGN(TableStack stack, SaveAndOpen({}, records));
    records.erase("key000001");
    CAIRN_ASSERT_OK_AND_ASSIGN(stack, SaveAndOpen(stack, records));
    for (const char* first : {"2", "3"}) {
      CAIRN_ASSERT_OK_AND_ASSIGN(
          const auto writer, OverlayWriter::Create(*storage(), NewObjectId(1), stack, kLastKey));
      CAIRN_ASSERT_OK(writer->Add("first", Bytes(first)));
      CAIRN_ASSERT_OK(writer->KeepAfter("first"));
      CAIRN_ASSERT_OK_AND_ASSIGN(const auto tables, Finish(*writer));
      records["first"] = first;
      CAIRN_ASSERT_OK_AND_ASSIGN(stack, Open(tables));
      CAIRN_ASSERT_OK_AND_ASSIGN(const Records read, ScanWithoutLast(stack));
      EXPECT_EQ(read, records);
    }
    EXPECT_EQ(Counts(stack).back(), count == 3 ? 3u : 1001u);
  }
}

// Records of the base that are not greater than the key, and were not added, are deleted.
TEST_P(OverlayWriterTest, OnlyRecordsAfterTheKeyAreKept) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack base, SaveAndOpen({}, Numbered(1000, "value")));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer,
                             OverlayWriter::Create(*storage(), NewObjectId(1), base, kLastKey));
  CAIRN_ASSERT_OK(writer->Add("key000001", Bytes("value")));
  CAIRN_ASSERT_OK(writer->KeepAfter("key000002"));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto tables, Finish(*writer));
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack stack, Open(tables));
  Records expected = Numbered(1000, "value");
  expected.erase("key000000");
  expected.erase("key000002");
  CAIRN_ASSERT_OK_AND_ASSIGN(const Records read, ScanWithoutLast(stack));
  EXPECT_EQ(read, expected);
}

TEST_P(OverlayWriterTest, ManyDifferencesMakeACompleteTable) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack base, SaveAndOpen({}, Numbered(1000, "value")));
  Records records = Numbered(1000, "value");
  for (int i = 300; i < 700; ++i) records[fmt::format("key{:06}", i)] = "changed";
  for (int i = 100; i < 200; ++i) records.erase(fmt::format("key{:06}", i));

  CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack stack, SaveAndOpen(base, records));

  EXPECT_THAT(Counts(stack), ::testing::ElementsAre(900));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Records read, ScanWithoutLast(stack));
  EXPECT_EQ(read, records);
}

TEST_P(OverlayWriterTest, ReaddedKeyReplacesItsTombstone) {
  Records records = Numbered(1000, "value");
  CAIRN_ASSERT_OK_AND_ASSIGN(TableStack stack, SaveAndOpen({}, records));
  records.erase("key000007");
  CAIRN_ASSERT_OK_AND_ASSIGN(stack, SaveAndOpen(stack, records));
  records["key000007"] = "again";

  CAIRN_ASSERT_OK_AND_ASSIGN(stack, SaveAndOpen(stack, records));

  EXPECT_THAT(Counts(stack), ::testing::ElementsAre(1, 1000));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Records read, ScanWithoutLast(stack));
  EXPECT_EQ(read, records);
}

// Differences of more than 64 MiB are not kept in memory.
TEST_P(OverlayWriterTest, LargeDifferencesMakeACompleteTable) {
  Records records = Numbered(1000, "value");
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack base, SaveAndOpen({}, records));
  for (int i = 500; i < 580; ++i) records[fmt::format("key{:06}", i)] = std::string(1 << 20, 'x');

  CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack stack, SaveAndOpen(base, records));

  EXPECT_THAT(Counts(stack), ::testing::ElementsAre(1000));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Records read, ScanWithoutLast(stack));
  EXPECT_EQ(read, records);
}

TEST_P(OverlayWriterTest, RecordsInTheWrongOrderAreRefused) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack base, SaveAndOpen({}, Numbered(10, "value")));
  for (const TableStack& stack : {TableStack(), base}) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer,
                               OverlayWriter::Create(*storage(), NewObjectId(1), stack, kLastKey));
    CAIRN_ASSERT_OK(writer->Add("key000005", Bytes("value")));
    EXPECT_THAT(writer->Add("key000005", Bytes("value")),
                IsError(ErrorCode::kInvalidArgument, "order"));
    EXPECT_THAT(writer->Add("key000006", {}), IsError(ErrorCode::kInvalidArgument, "empty"));
  }
}

/// Saves with the faults of `plan`, and returns whether that succeeded.
Result<bool> SaveWithFault(const std::shared_ptr<Storage>& storage, std::span<const TableInfo> base,
                           const Records& records, FaultPlan plan) {
  const auto faulty = std::make_shared<FaultyStorage>(storage);
  faulty->SetPlan(std::move(plan));
  const auto save = [&]() -> Result<std::vector<TableInfo>> {
    CAIRN_TRY_ASSIGN(const TableStack stack, TableStack::Open(faulty, base));
    return Save(*faulty, stack, records);
  };
  const auto tables = save();
  if (!tables) {
    EXPECT_THAT(tables, IsError(ErrorCode::kUnavailable, ""));
    return false;
  }
  CAIRN_TRY_ASSIGN(const TableStack stack, TableStack::Open(storage, *tables));
  CAIRN_TRY_ASSIGN(const Records read, ScanWithoutLast(stack));
  EXPECT_EQ(read, records);
  return true;
}

// Fails each call of the storage in turn, until a save succeeds.
TEST_P(OverlayWriterTest, FailedCallsOfTheStorageFailTheSave) {
  Records records = Numbered(3000, "value");
  for (auto& [key, value] : records) value += std::string(100, key.back());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto base, Save(*storage(), {}, records));
  for (const int stride : {1000, 2}) {
    for (int i = 0; i < 3000; i += stride) records[fmt::format("key{:06}", i)] = "changed";
    for (const StorageFault fault :
         {StorageFault::kRefuse, StorageFault::kLoseResponse, StorageFault::kPowerCut}) {
      uint64_t index = 0;
      for (bool succeeded = false; !succeeded && !HasFailure(); ++index) {
        SCOPED_TRACE(fmt::format("stride {}, call {}", stride, index));
        CAIRN_ASSERT_OK_AND_ASSIGN(succeeded,
                                   SaveWithFault(storage(), base, records, FaultAt(index, fault)));
      }
      EXPECT_GT(index, 4u);  // the size, the tail, the creation and the end of a table
    }
  }
}

/// Changes a few records, some, or most of them.
void Mutate(SeededRandom& random, Records& records) {
  const uint64_t kind = random.Between(0, 30);
  const uint64_t changes = kind == 0 ? 2000 : kind < 5 ? 100 : random.Between(0, 5);
  for (uint64_t i = 0; i < changes; ++i) {
    const std::string key = fmt::format("key{}", random.Between(0, 2500));
    if (random.Chance(0.4)) {
      records.erase(key);
    } else {
      records[key] = fmt::format("value{}", random.Between(0, 1'000'000));
    }
  }
  if (kind == 1 && random.Chance(0.2)) records.clear();
  records["step"] = fmt::format("record{}", random.Between(0, 1'000'000));
}

// Property: the contents are those of a map, and the tables have the promised number and size.
TEST_P(OverlayWriterTest, ManySavesKeepTheContentsAndTheBounds) {
  SeededRandom random;
  Records records = Numbered(2000, "value");
  CAIRN_ASSERT_OK_AND_ASSIGN(TableStack stack, SaveAndOpen({}, records));
  for (int save = 0; save < 200; ++save) {
    SCOPED_TRACE(fmt::format("save {}", save));
    const size_t base_size = stack.tables().size();
    Mutate(random, records);

    CAIRN_ASSERT_OK_AND_ASSIGN(stack, SaveAndOpen(stack, records));

    CAIRN_ASSERT_OK_AND_ASSIGN(const Records read, ScanWithoutLast(stack));
    ASSERT_EQ(read, records);
    const std::string key = fmt::format("key{}", random.Between(0, 2500));
    const auto expected = records.find(key);
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto value, stack.Get(key));
    ASSERT_EQ(value ? Text(*value) : "", expected == records.end() ? "" : expected->second);
    CAIRN_ASSERT_OK_AND_ASSIGN(const Records with_prefix, ScanAll(stack, key));
    ASSERT_EQ(with_prefix, Records(records.lower_bound(key), records.lower_bound(key + "\x7f")));
    const std::vector<uint64_t> counts = Counts(stack);
    ASSERT_LE(counts.size(), std::min<size_t>(base_size + 1, kMaxTables));
    for (size_t i = 1; i < counts.size(); ++i) ASSERT_GT(counts[i], 4 * counts[i - 1]);
    uint64_t sum = 0;
    for (const uint64_t count : counts) sum += count;
    ASSERT_LE(3 * sum, 4 * counts.back());
    ASSERT_LE(sum, 2 * records.size());
    CAIRN_ASSERT_OK(stack.tables().front()->Verify());
  }
}

TEST_P(OverlayWriterTest, TableIsWrittenEvenIfNothingDiffers) {
  const Records records = Numbered(100, "value");
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack base, SaveAndOpen({}, records));

  CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack stack, SaveAndOpen(base, records));

  EXPECT_THAT(Counts(stack), ::testing::ElementsAre(0, 100));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Records read, ScanWithoutLast(stack));
  EXPECT_EQ(read, records);
}

TEST_P(OverlayWriterTest, LastRecordOfTheBaseIsNeitherComparedNorMerged) {
  Records records = Numbered(1000, "value");
  CAIRN_ASSERT_OK_AND_ASSIGN(TableStack stack, SaveAndOpen({}, records));
  for (int i = 0; i < 3; ++i) {
    records[fmt::format("key{:06}", i)] = "changed";
    CAIRN_ASSERT_OK_AND_ASSIGN(stack, SaveAndOpen(stack, records));
  }
  // The three small tables were merged.
  ASSERT_EQ(stack.tables().size(), 2u);
  CAIRN_ASSERT_OK_AND_ASSIGN(const Records newest, ReadAll(*stack.tables()[0]));
  EXPECT_EQ(newest, (Records{{"key000000", "changed"},
                             {"key000001", "changed"},
                             {"key000002", "changed"},
                             {kLastKey, Ids({&stack.tables()[1]->info(), 1})}}));
}

TEST_P(OverlayWriterTest, CompleteTableIsAfterNoOther) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack first, SaveAndOpen({}, Numbered(100, "value")));
  for (const TableStack& base : {first, TableStack()}) {
    for (const Records& records : {Numbered(100, "changed"), Numbered(1, "value"), Records()}) {
      CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack stack, SaveAndOpen(base, records));
      EXPECT_EQ(stack.tables().size(), 1u);
      CAIRN_ASSERT_OK_AND_ASSIGN(const Records read, ScanWithoutLast(stack));
      EXPECT_EQ(read, records);
      CAIRN_ASSERT_OK_AND_ASSIGN(const Records all, ReadAll(*stack.tables()[0]));
      EXPECT_EQ(all.size(), records.size() + 1) << "a complete table has tombstones";
    }
  }
}

}  // namespace
}  // namespace cairn::kv::internal
