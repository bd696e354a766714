// A save writes what differs, and the tables of a step stay few and small.

#include "kv/commit/internal/step_table_writer.h"

#include "kv/root/internal/kv_records.h"
#include "tests/kv/table/table_test_support.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/seeded_random.h"

namespace cairn::kv::internal {
namespace {

using cairn::testing::IsError;
using cairn::testing::SeededRandom;

// Keys of records in these tests begin with the column kValues.
const std::string kStepKey = TableKey(Column::kSteps, "");
const std::string kLastKey = TableKey(Column::kTables, "");

struct OpenState : StoreState {
  explicit OpenState(std::shared_ptr<Storage> in) {
    storage = std::move(in);
    tables = std::make_shared<OpenTables>(storage);
    epoch = 1;
  }
};

StepEntry EntryOf(const TableStack& stack) {
  StepEntry entry;
  for (const auto& table : stack.tables()) entry.tables.push_back(table->info());
  return entry;
}

Result<std::vector<TableInfo>> Save(const std::shared_ptr<Storage>& storage, const StepEntry& base,
                                    const Records& records) {
  OpenState state(storage);
  StepEntry entry;
  CAIRN_TRY_ASSIGN(StepTableWriter writer,
                   StepTableWriter::Create(state, base.tables.empty() ? nullptr : &base, {}));
  for (const auto& [key, value] : records) {
    CAIRN_TRY(writer.AddCounted({.key = key, .value = Bytes(value)}));
  }
  CAIRN_TRY(writer.Finish(entry));
  return entry.tables;
}

/// Returns the records without those of the step itself.
Result<Records> ScanValues(const TableStack& stack) {
  CAIRN_TRY_ASSIGN(Records records, ScanAll(stack));
  EXPECT_EQ(records.erase(kStepKey), 1u);
  EXPECT_EQ(records.erase(kLastKey), 1u);
  return records;
}

class StepTableWriterTest : public TableStorageTest {
 protected:
  Result<TableStack> SaveAndOpen(const TableStack& base, const Records& records) {
    CAIRN_TRY_ASSIGN(const auto tables, Save(storage(), EntryOf(base), records));
    return Open(tables);
  }
  /// Opens the tables, and checks that the newest one names the others.
  Result<TableStack> Open(const std::vector<TableInfo>& tables) {
    CAIRN_TRY_ASSIGN(TableStack stack, OpenTables(storage()).OpenStack(tables));
    CAIRN_TRY_ASSIGN(const auto last, stack.tables().front()->Get(kLastKey));
    EXPECT_EQ(last, EncodeTables(std::span(tables).subspan(1)));
    return stack;
  }
};
CAIRN_INSTANTIATE_STORAGES(StepTableWriterTest);

Records Numbered(int count, const std::string& value) {
  Records records;
  for (int i = 0; i < count; ++i) records.emplace(fmt::format("\3key{:06}", i), value);
  return records;
}

/// Returns the numbers of records without the last ones.
std::vector<uint64_t> Counts(const TableStack& stack) {
  std::vector<uint64_t> counts;
  for (const auto& table : stack.tables()) counts.push_back(table->info().record_count - 1);
  return counts;
}

TEST_P(StepTableWriterTest, OnlyDifferencesAreWritten) {
  Records records = Numbered(1000, "value");
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack base, SaveAndOpen({}, records));
  records["\3key000500"] = "changed";
  records["\3key000500b"] = "added";
  records.erase("\3key000999");

  CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack stack, SaveAndOpen(base, records));

  EXPECT_THAT(Counts(stack), ::testing::ElementsAre(3, 1001));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Records newest, ReadAll(*stack.tables()[0]));
  EXPECT_EQ(newest, (Records{{"\3key000500", "changed"},
                             {"\3key000500b", "added"},
                             {"\3key000999", ""},
                             {kLastKey, Text(EncodeTables({&stack.tables()[1]->info(), 1}))}}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Records read, ScanValues(stack));
  EXPECT_EQ(read, records);
}

TEST_P(StepTableWriterTest, RecordsAreKeptWithoutAComparison) {
  for (const int count : {1, 1000}) {  // with few records, the new table is a complete one
    SCOPED_TRACE(count);
    Records records = Numbered(count + 1, "value");
    CAIRN_ASSERT_OK_AND_ASSIGN(TableStack stack, SaveAndOpen({}, records));
    records.erase("\3key000001");
    CAIRN_ASSERT_OK_AND_ASSIGN(stack, SaveAndOpen(stack, records));
    for (const uint64_t generation : {2, 3}) {
      OpenState state(storage());
      const StepEntry base = EntryOf(stack);
      StepEntry entry;
      CAIRN_ASSERT_OK_AND_ASSIGN(StepTableWriter writer,
                                 StepTableWriter::Create(state, &base, {.generation = generation}));
      CAIRN_ASSERT_OK(writer.FinishSame(base, entry));
      CAIRN_ASSERT_OK_AND_ASSIGN(stack, Open(entry.tables));
      CAIRN_ASSERT_OK_AND_ASSIGN(const auto step, stack.Get(kStepKey));
      EXPECT_EQ(step, EncodeStep({.generation = generation}));
      CAIRN_ASSERT_OK_AND_ASSIGN(const Records read, ScanValues(stack));
      EXPECT_EQ(read, records);
    }
    EXPECT_EQ(Counts(stack).back(), count == 1 ? 2u : 1002u);
  }
}

// Differences of more than 64 MiB are not kept in memory.
TEST_P(StepTableWriterTest, LargeDifferencesMakeACompleteTable) {
  Records records = Numbered(1000, "value");
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack base, SaveAndOpen({}, records));
  for (int i = 500; i < 580; ++i) records[fmt::format("\3key{:06}", i)] = std::string(1 << 20, 'x');

  CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack stack, SaveAndOpen(base, records));

  EXPECT_THAT(Counts(stack), ::testing::ElementsAre(1001));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Records read, ScanValues(stack));
  EXPECT_EQ(read, records);
}

// Records refer to a segment by the first 64 of its 96 bits.
TEST_P(StepTableWriterTest, SegmentsWithTheSameReferenceAreRefused) {
  OpenState state(storage());
  CAIRN_ASSERT_OK_AND_ASSIGN(StepTableWriter writer, StepTableWriter::Create(state, nullptr, {}));
  const auto add = [&](const ObjectId& id) {
    const std::string key = TableKey(Column::kSegments, NumberKey(id.id));
    const std::vector<std::byte> record = EncodeSegment(NewSegmentInfo(id));
    return writer.AddCounted({.key = key, .value = record});
  };
  const ObjectId id{.epoch = 1, .id = 2, .id_tail = 3};
  CAIRN_EXPECT_OK(add(id));
  CAIRN_EXPECT_OK(add(id));
  CAIRN_EXPECT_OK(add({.epoch = 1, .id = 3, .id_tail = 4}));
  EXPECT_THAT(add({.epoch = 1, .id = 2, .id_tail = 4}),
              IsError(ErrorCode::kConflict, "begin with"));
}

TEST_P(StepTableWriterTest, RecordsInTheWrongOrderAreRefused) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack stack, SaveAndOpen({}, Numbered(10, "value")));
  const StepEntry base = EntryOf(stack);
  OpenState state(storage());
  for (const StepEntry* entry : {static_cast<const StepEntry*>(nullptr), &base}) {
    CAIRN_ASSERT_OK_AND_ASSIGN(StepTableWriter writer, StepTableWriter::Create(state, entry, {}));
    const TableRecord record{.key = "\3key000005", .value = Bytes("value")};
    CAIRN_ASSERT_OK(writer.AddCounted(record));
    EXPECT_THAT(writer.AddCounted(record), IsError(ErrorCode::kInvalidArgument, "order"));
    EXPECT_THAT(writer.AddCounted({.key = "\3key000006", .value = {}}),
                IsError(ErrorCode::kInvalidArgument, "empty"));
  }
}

/// Saves with the faults of `plan`, and returns whether that succeeded.
Result<bool> SaveWithFault(const std::shared_ptr<Storage>& storage, std::span<const TableInfo> base,
                           const Records& records, FaultPlan plan) {
  const auto faulty = std::make_shared<FaultyStorage>(storage);
  faulty->SetPlan(std::move(plan));
  const auto tables = Save(faulty, {.tables = {base.begin(), base.end()}}, records);
  if (!tables) {
    EXPECT_THAT(tables, IsError(ErrorCode::kUnavailable, ""));
    return false;
  }
  CAIRN_TRY_ASSIGN(const TableStack stack, OpenTables(storage).OpenStack(*tables));
  CAIRN_TRY_ASSIGN(const Records read, ScanValues(stack));
  EXPECT_EQ(read, records);
  return true;
}

// Fails each call of the storage in turn, until a save succeeds.
TEST_P(StepTableWriterTest, FailedCallsOfTheStorageFailTheSave) {
  Records records = Numbered(3000, "value");
  for (auto& [key, value] : records) value += std::string(100, key.back());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto base, Save(storage(), {}, records));
  for (const int stride : {1000, 2}) {
    for (int i = 0; i < 3000; i += stride) records[fmt::format("\3key{:06}", i)] = "changed";
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
    const std::string key = fmt::format("\3key{}", random.Between(0, 2500));
    if (random.Chance(0.4)) {
      records.erase(key);
    } else {
      records[key] = fmt::format("value{}", random.Between(0, 1'000'000));
    }
  }
  if (kind == 1 && random.Chance(0.2)) records.clear();
  records["\3step"] = fmt::format("record{}", random.Between(0, 1'000'000));
}

// Property: the contents are those of a map, and the tables have the promised number and size.
TEST_P(StepTableWriterTest, ManySavesKeepTheContentsAndTheBounds) {
  SeededRandom random;
  Records records = Numbered(2000, "value");
  CAIRN_ASSERT_OK_AND_ASSIGN(TableStack stack, SaveAndOpen({}, records));
  for (int save = 0; save < 200; ++save) {
    SCOPED_TRACE(fmt::format("save {}", save));
    const size_t base_size = stack.tables().size();
    Mutate(random, records);

    CAIRN_ASSERT_OK_AND_ASSIGN(stack, SaveAndOpen(stack, records));

    CAIRN_ASSERT_OK_AND_ASSIGN(const Records read, ScanValues(stack));
    ASSERT_EQ(read, records);
    const std::string key = fmt::format("\3key{}", random.Between(0, 2500));
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
    ASSERT_LE(sum, 2 * (records.size() + 1));
    if (counts.size() == 1) {
      ASSERT_EQ(sum, records.size() + 1) << "a complete table has tombstones";
    }
    CAIRN_ASSERT_OK(stack.tables().front()->Verify());
  }
}

}  // namespace
}  // namespace cairn::kv::internal
