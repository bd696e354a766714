// A table contains what was written, and damage is found instead of read.

#include <rocksdb/sst_file_reader.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <thread>

#include "kv/base/key.h"
#include "kv/table/internal/table_block.h"
#include "kv/table/internal/table_reader.h"
#include "kv/table/internal/table_writer.h"
#include "tests/kv/table/table_test_support.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/forked_child.h"
#include "tests/support/seeded_random.h"

namespace cairn::kv::internal {
namespace {

using cairn::testing::ForkedChild;
using cairn::testing::IsError;
using cairn::testing::SeededRandom;

class TableTest : public TableStorageTest {};
CAIRN_INSTANTIATE_STORAGES(TableTest);

/// `count` records of which a few are tombstones, so that there are several blocks of records.
Records ManyRecords(int count) {
  SeededRandom random(7);
  Records records;
  for (int i = 0; i < count; ++i) {
    std::string value(random.Between(0, 20) == 0 ? 0 : random.Between(1, 200), '\0');
    random.Fill(std::as_writable_bytes(std::span(value)));
    records.emplace(fmt::format("model.layers.{}.weight", i), std::move(value));
  }
  return records;
}

TEST_P(TableTest, ReturnsWhatWasWritten) {
  const Records records = ManyRecords(5000);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto table, WriteAndOpen(records));

  EXPECT_EQ(table->info().record_count, records.size());
  CAIRN_ASSERT_OK_AND_ASSIGN(const Records read, ReadAll(*table));
  EXPECT_EQ(read, records);
  for (const auto& [key, value] : records) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto got, table->Get(key));
    ASSERT_TRUE(got.has_value()) << key;
    EXPECT_EQ(Text(*got), value);
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto absent, table->Get(key + "x"));
    EXPECT_FALSE(absent.has_value());
  }
  CAIRN_EXPECT_OK(table->Verify());
}

/// RocksDB and its tools open a table, although Cairn reads it without them.
TEST_P(TableTest, RocksDbReadsTheSame) {
  const Records records = ManyRecords(5000);
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableInfo info, Write(records));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto bytes, ReadTable(info));
  const cairn::testing::ScopedTempDir dir;
  const std::string path = dir.path() + "/table.sst";
  std::ofstream(path, std::ios::binary) << Text(bytes);

  rocksdb::SstFileReader reader{rocksdb::Options()};
  const rocksdb::Status opened = reader.Open(path);
  ASSERT_TRUE(opened.ok()) << opened.ToString();
  const std::unique_ptr<rocksdb::Iterator> iterator(reader.NewIterator(rocksdb::ReadOptions()));
  Records read;
  for (iterator->SeekToFirst(); iterator->Valid(); iterator->Next()) {
    read.emplace(iterator->key().ToString(), iterator->value().ToString());
  }
  EXPECT_TRUE(iterator->status().ok());
  EXPECT_EQ(read, records);
}

/// Names are UTF-8, but nothing is lost if one is not.
TEST_P(TableTest, ScansFindKeysOfAnyBytes) {
  Records records = {{TableKey(Column::kStructures, ""), std::string(100'000, 'x')}};
  for (const Column column : {Column::kTensors, Column::kChunks, Column::kValues}) {
    for (const char* name : {"a", "\x7f", "\xfe", "\xff", "\xff\xff\xff"}) {
      records.emplace(TableKey(column, FqnKey(name)), "record");
    }
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto table, WriteAndOpen(records));
  const TableStack stack({table});

  size_t found = 0;
  for (int column = 0; column < kColumnCount; ++column) {
    CAIRN_EXPECT_OK(stack.Scan(ColumnPrefix(static_cast<Column>(column)),
                               [&](std::string_view key, auto) -> Result<bool> {
                                 EXPECT_TRUE(records.contains(std::string(key)));
                                 ++found;
                                 return true;
                               }));
  }
  EXPECT_EQ(found, records.size());
  for (const auto& [key, value] : records) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto got, stack.Get(key));
    EXPECT_TRUE(got.has_value());
    size_t count = 0;
    CAIRN_EXPECT_OK(stack.Scan(key, [&](auto, auto) -> Result<bool> {
      ++count;
      return true;
    }));
    EXPECT_EQ(count, 1u);
  }
}

TEST_P(TableTest, WriterRefusesWrongRecords) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, TableWriter::Create(*storage(), NewObjectId(1)));

  CAIRN_ASSERT_OK(writer->Add("b", Bytes("1")));
  EXPECT_THAT(writer->Add("c", {}), IsError(ErrorCode::kInvalidArgument, "empty value"));
  EXPECT_THAT(writer->Add("b", Bytes("2")), IsError(ErrorCode::kInvalidArgument, "order"));
  EXPECT_THAT(writer->AddTombstone("a"), IsError(ErrorCode::kInvalidArgument, "order"));
  EXPECT_THAT(Write({}), IsError(ErrorCode::kInvalidArgument, "at least one record"));
}

TEST_P(TableTest, WriterRefusesRecordsOfMoreThanAGiB) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, TableWriter::Create(*storage(), NewObjectId(1)));
  void* const memory = ::mmap(nullptr, kMaxTableRecordBytes, PROT_READ,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const std::span value(static_cast<const std::byte*>(memory), kMaxTableRecordBytes);

  EXPECT_THAT(writer->Add("a", value), IsError(ErrorCode::kInvalidArgument, "more than the limit"));

  ::munmap(memory, kMaxTableRecordBytes);
}

TEST_P(TableTest, UnfinishedTableIsDiscarded) {
  CAIRN_ASSERT_OK_AND_ASSIGN(auto writer, TableWriter::Create(*storage(), NewObjectId(1)));
  CAIRN_ASSERT_OK(writer->Add("b", Bytes("1")));

  writer.reset();

  CAIRN_ASSERT_OK_AND_ASSIGN(const auto names, storage()->List("tables/"));
  EXPECT_THAT(names, ::testing::IsEmpty());
}

TEST_P(TableTest, AbsentTableIsNotFound) {
  EXPECT_THAT(TableReader::Open(storage(), TableInfo{.id = NewObjectId(1), .file_bytes = 100}),
              IsError(ErrorCode::kNotFound, ""));
}

TEST_P(TableTest, OtherLengthIsDamage) {
  CAIRN_ASSERT_OK_AND_ASSIGN(TableInfo info, Write({{"a", "1"}}));
  ++info.file_bytes;

  // The length of an object that is not a file is only known from reads beyond its end.
  const char* const message = storage()->local_files() != nullptr ? "bytes and not" : "";
  EXPECT_THAT(TableReader::Open(storage(), info), IsError(ErrorCode::kDataLoss, message));
  info.file_bytes -= 2;
  EXPECT_THAT(TableReader::Open(storage(), info), IsError(ErrorCode::kDataLoss, ""));
}

TEST_P(TableTest, OtherRecordCountIsDamage) {
  CAIRN_ASSERT_OK_AND_ASSIGN(TableInfo info, Write({{"a", "1"}}));
  ++info.record_count;
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto table, TableReader::Open(storage(), info));

  EXPECT_THAT(table->Verify(), IsError(ErrorCode::kDataLoss, "1 records and not 2"));
}

/// Expects that a damaged table is refused or that its records are right, and that Verify finds the
/// damage.
void ExpectFound(const std::shared_ptr<Storage>& storage, const TableInfo& info,
                 const Records& records) {
  const auto table = TableReader::Open(storage, info);
  if (!table) {
    EXPECT_THAT(table, IsError(ErrorCode::kDataLoss, ""));
    return;
  }
  EXPECT_THAT((*table)->Verify(), IsError(ErrorCode::kDataLoss, ""));
  const auto read = ReadAll(**table);
  if (read) {
    EXPECT_EQ(*read, records);
  } else {
    EXPECT_THAT(read, IsError(ErrorCode::kDataLoss, ""));
  }
  for (const auto& [key, value] : records) {
    const auto got = (*table)->Get(key);
    if (!got) continue;
    EXPECT_EQ(*got ? std::optional(Text(**got)) : std::nullopt, value);
  }
}

class TableDamageTest : public TableStorageTest {};
INSTANTIATE_TEST_SUITE_P(Storages, TableDamageTest, ::testing::Values("memory"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(TableDamageTest, EveryFlippedBitIsFound) {
  const Records records = ManyRecords(20);
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableInfo info, Write(records));
  CAIRN_ASSERT_OK_AND_ASSIGN(std::vector<std::byte> bytes, ReadTable(info));

  for (size_t i = 0; i < bytes.size() && !HasFailure(); ++i) {
    for (const std::byte mask : {std::byte{1}, std::byte{0x80}, std::byte{0xff}}) {
      SCOPED_TRACE(fmt::format("byte {} of {}", i, bytes.size()));
      bytes[i] ^= mask;
      CAIRN_ASSERT_OK_AND_ASSIGN(const TableInfo damaged, ReplaceTable(info, bytes));
      ExpectFound(storage(), damaged, records);
      bytes[i] ^= mask;
      CAIRN_ASSERT_OK(storage()->Remove(ObjectName(ObjectKind::kTable, damaged.id)));
    }
  }
}

TEST_P(TableDamageTest, FlipsInALargeTableAreFound) {
  const Records records = ManyRecords(5000);
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableInfo info, Write(records));
  CAIRN_ASSERT_OK_AND_ASSIGN(std::vector<std::byte> bytes, ReadTable(info));
  SeededRandom random;

  for (int round = 0; round < 10 && !HasFailure(); ++round) {
    const size_t i = random.Between(0, bytes.size() - 1);
    SCOPED_TRACE(fmt::format("byte {} of {}", i, bytes.size()));
    bytes[i] ^= std::byte{4};
    CAIRN_ASSERT_OK_AND_ASSIGN(const TableInfo damaged, ReplaceTable(info, bytes));
    ExpectFound(storage(), damaged, records);
    bytes[i] ^= std::byte{4};
  }
}

/// Only who reads a damaged block notices the damage.
TEST_P(TableDamageTest, LookupsOfSmallRecordsDoNotReadALargeOne) {
  SeededRandom random;
  std::string structure(1 << 20, '\0');
  random.Fill(std::as_writable_bytes(std::span(structure)));
  const auto key = [](Column column, std::string_view fqn) {
    return TableKey(column, fqn.empty() ? "" : FqnKey(fqn));
  };
  const std::string structure_key = key(Column::kStructures, "");
  const Records records = {{key(Column::kSteps, ""), "step"},
                           {key(Column::kTensors, "b"), "tensor"},
                           {key(Column::kChunks, "b"), "chunk"},
                           {structure_key, structure},
                           {TableKey(Column::kSegments, NumberKey(7)), "segment"},
                           {key(Column::kTables, ""), "tables"}};
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableInfo info, Write(records));
  CAIRN_ASSERT_OK_AND_ASSIGN(std::vector<std::byte> bytes, ReadTable(info));
  bytes[bytes.size() / 2] ^= std::byte{1};  // in the structure
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableInfo damaged, ReplaceTable(info, bytes));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto table, TableReader::Open(storage(), damaged));

  EXPECT_THAT(table->Get(structure_key), IsError(ErrorCode::kDataLoss, ""));
  for (const auto& [other, value] : records) {
    if (other == structure_key) continue;
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto got, table->Get(other));
    EXPECT_EQ(Text(got.value()), value);
  }
  const TableStack stack({table});
  for (const Column column : {Column::kTensors, Column::kChunks, Column::kValues}) {
    for (const char* absent : {"a", "c", "\u00ff"}) {
      SCOPED_TRACE(fmt::format("{} {}", static_cast<int>(column), absent));
      CAIRN_ASSERT_OK_AND_ASSIGN(const auto got, table->Get(key(column, absent)));
      EXPECT_FALSE(got.has_value());
      CAIRN_EXPECT_OK(stack.Scan(key(column, absent), [](auto, auto) -> Result<bool> {
        return Fail(ErrorCode::kInternal, "there is no such record");
      }));
    }
  }
  for (const Column column :
       {Column::kTensors, Column::kChunks, Column::kSegments, Column::kTables}) {
    CAIRN_EXPECT_OK(
        stack.Scan(ColumnPrefix(column), [](auto, auto) { return Result<bool>(true); }));
  }
}

TEST_P(TableDamageTest, EveryTruncationIsFound) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableInfo info, Write(ManyRecords(20)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> bytes, ReadTable(info));

  for (size_t size = 0; size < bytes.size() && !HasFailure(); ++size) {
    SCOPED_TRACE(fmt::format("{} of {} bytes", size, bytes.size()));
    CAIRN_ASSERT_OK_AND_ASSIGN(const TableInfo damaged,
                               ReplaceTable(info, std::span(bytes).first(size)));
    EXPECT_THAT(TableReader::Open(storage(), damaged), IsError(ErrorCode::kDataLoss, ""));
    CAIRN_ASSERT_OK(storage()->Remove(ObjectName(ObjectKind::kTable, damaged.id)));
  }
}

// No checksum covers the footer, and RocksDB allocates the length of the index that it states.
TEST_P(TableDamageTest, FooterWithAHugeIndexIsRefused) {
  constexpr size_t kFooterBytes = 53;
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableInfo info, Write(ManyRecords(20)));
  CAIRN_ASSERT_OK_AND_ASSIGN(std::vector<std::byte> bytes, ReadTable(info));
  const auto footer = std::span(bytes).last(kFooterBytes);
  // Skips the checksum type, and the offset and the length of the meta index.
  size_t at = 1;
  for (int numbers = 0; numbers < 2; ++at) numbers += footer[at] < std::byte{0x80} ? 1 : 0;
  const std::string huge = std::string(1, '\0') + std::string(8, '\xff') + "\x3f";
  std::ranges::copy(Bytes(huge), footer.begin() + static_cast<ptrdiff_t>(at));

  CAIRN_ASSERT_OK_AND_ASSIGN(const TableInfo damaged, ReplaceTable(info, bytes));

  EXPECT_THAT(TableReader::Open(storage(), damaged), IsError(ErrorCode::kDataLoss, "footer"));
}

// The checksum of a block does not depend on its place.
TEST_P(TableDamageTest, ABlockOfAnotherKindIsRefused) {
  constexpr size_t kHandlesBytes = 40;
  const Records records = ManyRecords(20);
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableInfo info, Write(records));
  CAIRN_ASSERT_OK_AND_ASSIGN(std::vector<std::byte> bytes, ReadTable(info));
  const auto handles = std::span(bytes).subspan(bytes.size() - 52, kHandlesBytes);
  std::span<const std::byte> rest = handles;
  ASSERT_TRUE(TakeHandle(rest));
  const auto meta_index = handles.first(kHandlesBytes - rest.size());
  ASSERT_TRUE(TakeHandle(rest));
  const auto index = handles.subspan(meta_index.size());
  std::ranges::fill(index, std::byte{0});
  std::ranges::copy(meta_index, index.begin());

  CAIRN_ASSERT_OK_AND_ASSIGN(const TableInfo forged, ReplaceTable(info, bytes));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto table, TableReader::Open(storage(), forged));

  EXPECT_THAT(ReadAll(*table), IsError(ErrorCode::kDataLoss, "cannot read the table"));
  EXPECT_THAT(table->Get(records.begin()->first), IsError(ErrorCode::kDataLoss, ""));
}

TEST(BlockCursorTest, WrongEntriesAreDamage) {
  const std::string restarts("\0\0\0\0\1\0\0\0", 8);
  const std::string tail("\1\0\0\0\0\0\0\0", 8);
  const std::string sound = std::string("\0\x09\2a", 4) + tail + "vv";
  const auto read = [](const std::string& block) {
    BlockCursor cursor(BlockCursor::Kind::kRecords);
    cursor.Open(Bytes(block));
    while (cursor.Next()) {
      EXPECT_EQ(cursor.key(), "a");
      EXPECT_EQ(Text(cursor.value()), "vv");
    }
    const bool is_damaged = cursor.is_damaged();
    cursor.Open(Bytes(block));
    cursor.Seek("b");
    EXPECT_EQ(cursor.is_damaged(), is_damaged);
    return !is_damaged;
  };
  EXPECT_TRUE(read(sound + restarts));

  const std::string wrong[] = {
      "",                                                    // no restart points
      std::string(4, '\0'),                                  // none of them
      sound + std::string(4, '\xff'),                        // more than fit
      restarts,                                              // no entries
      sound + std::string("\x0e\0\0\0\1\0\0\0", 8),          // a restart point beyond the entries
      sound + std::string("\x80", 1) + restarts,             // half a number
      std::string("\1\0\1v", 4) + restarts,                  // shares bytes with no key
      std::string("\0\x7f\1a", 4) + tail + restarts,         // a key beyond the entries
      std::string("\0\x09\x7f", 3) + "a" + tail + restarts,  // a value after them
      std::string("\0\1\1av", 5) + restarts,                 // a key without its eight bytes
  };
  for (const std::string& block : wrong)
    EXPECT_FALSE(read(block)) << ::testing::PrintToString(block);
}

// Files remain readable through their descriptors; elsewhere, a read reports the removal.
TEST_P(TableTest, RemovedTableStaysReadableAsAFileAndIsNotFoundElsewhere) {
  const Records records = ManyRecords(5000);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto table, WriteAndOpen(records));

  CAIRN_ASSERT_OK(storage()->Remove(ObjectName(ObjectKind::kTable, table->info().id)));

  const auto read = ReadAll(*table);
  if (storage()->local_files() != nullptr) {
    EXPECT_EQ(read, records);
  } else {
    EXPECT_THAT(read, IsError(ErrorCode::kNotFound, "tables/"));
  }
}

// A failed request is not damage.
TEST_P(TableTest, ErrorsOfTheStorageKeepTheirCode) {
  const Records records = ManyRecords(5000);
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableInfo info, Write(records));
  const auto faulty = std::make_shared<FaultyStorage>(storage());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto table, TableReader::Open(faulty, info));

  faulty->SetPlan([](const StorageCall&) { return StorageFault::kRefuse; });

  EXPECT_THAT(ReadAll(*table), IsError(ErrorCode::kUnavailable, ""));
  EXPECT_THAT(table->Get(records.begin()->first), IsError(ErrorCode::kUnavailable, ""));
  EXPECT_THAT(table->Verify(), IsError(ErrorCode::kUnavailable, ""));
  EXPECT_THAT(TableReader::Open(faulty, info), IsError(ErrorCode::kUnavailable, ""));
  faulty->SetPlan({});
  CAIRN_ASSERT_OK_AND_ASSIGN(const Records read, ReadAll(*table));
  EXPECT_EQ(read, records);
}

TEST_P(TableTest, ManyThreadsReadOneTable) {
  const Records records = ManyRecords(2000);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto table, WriteAndOpen(records));
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        if (ReadAll(*table) != records || !table->Verify()) ++wrong;
        for (int key = i; key < 2000; key += 7) {
          const auto& [name, value] = *std::next(records.begin(), key);
          const auto got = table->Get(name);
          if (!got || !*got || Text(**got) != value) ++wrong;
        }
      });
    }
  }
  EXPECT_EQ(wrong, 0);
}

// RocksDB must not depend on threads of the parent.
TEST_P(TableTest, ForkedChildReadsAndWritesTables) {
  const Records records = ManyRecords(1000);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto parents, WriteAndOpen(records));
  ForkedChild child([&] {
    ::alarm(60);
    const auto own = WriteAndOpen(records);
    return own && ReadAll(**own) == records && ReadAll(*parents) == records && (*own)->Verify();
  });
  EXPECT_EQ(child.Wait(), 0);
}

}  // namespace
}  // namespace cairn::kv::internal
