// A divided table is read as one table, opens only the files that it needs, and is written range by
// range over the tables that a step keeps.

#include <gmock/gmock.h>

#include "kv/internal/records/kv_records.h"
#include "kv/internal/table/overlay_writer.h"
#include "kv/key.h"
#include "tests/kv/table/table_test_support.h"

namespace cairn::kv::internal {
namespace {

using cairn::testing::IsError;

std::string Chunk(const std::string& name) { return TableKey(Column::kChunks, name); }
std::string Tensor(const std::string& name) { return TableKey(Column::kTensors, name); }
std::string Value(const std::string& name) { return TableKey(Column::kValues, name); }

class DividedTableTest : public TableStorageTest {
 protected:
  /// Writes a table whose chunks from each key on are in a separate table.
  Result<TableInfo> WriteDivided(const Records& records, const std::vector<std::string>& begins) {
    Records own;
    std::vector<Records> ranges(begins.size());
    for (const auto& [key, value] : records) {
      size_t range = begins.size();
      for (size_t i = 0; i < begins.size() && key < Value(""); ++i) {
        if (key >= begins[i]) range = i;
      }
      (range < begins.size() ? ranges[range] : own).emplace(key, value);
    }
    CAIRN_TRY_ASSIGN(TableInfo info, Write(own));
    for (size_t i = 0; i < begins.size(); ++i) {
      CAIRN_TRY_ASSIGN(const TableInfo range, Write(ranges[i]));
      info.ranges.push_back({.begin = begins[i],
                             .id = range.id,
                             .file_bytes = range.file_bytes,
                             .record_count = range.record_count,
                             .digest = range.digest});
    }
    return info;
  }

  /// Writes what differs from `below` in the ranges, and returns the records of the table.
  Result<Records> WriteOverlay(const Records& records, const TableStack& below,
                               std::vector<KeyRange> ranges) {
    CAIRN_TRY_ASSIGN(const auto writer,
                     OverlayWriter::Create(*storage(), NewObjectId(1), below, std::move(ranges),
                                           RecordSource::kMemory));
    for (const auto& [key, value] : records) CAIRN_TRY(writer->Add(key, Bytes(value)));
    CAIRN_TRY_ASSIGN(const TableInfo info, writer->Finish());
    if (info.record_count == 0) return Records();
    CAIRN_TRY_ASSIGN(const auto table, TableReader::Open(storage(), info));
    return ReadAll(*table);
  }

  const Records records_ = {{Tensor("a"), "1"}, {Chunk("a"), "2"}, {Chunk("b"), "3"},
                            {Chunk("c"), ""},   {Chunk("d"), "4"}, {Value("e"), "5"}};
  const std::vector<std::string> begins_ = {Chunk("a"), Chunk("c"), Chunk("d")};
};
CAIRN_INSTANTIATE_STORAGES(DividedTableTest);

TEST_P(DividedTableTest, IsReadAsOneTable) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableInfo info, WriteDivided(records_, begins_));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto table, TableReader::Open(storage(), info));

  CAIRN_ASSERT_OK_AND_ASSIGN(const Records all, ReadAll(*table));

  EXPECT_EQ(all, records_);
  for (const auto& [key, value] : records_) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto found, table->Get(key));
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(Text(*found), value);
  }
  for (const auto& key : {Tensor("b"), Chunk(""), Chunk("bb"), Chunk("z"), Value("z")}) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto found, table->Get(key));
    EXPECT_FALSE(found.has_value());
  }
  EXPECT_EQ(info.record_count, 2u);
  EXPECT_EQ(info.total_record_count(), records_.size());
}

TEST_P(DividedTableTest, SeekFindsTheNextRecordInALaterRange) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableInfo info, WriteDivided(records_, begins_));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto table, TableReader::Open(storage(), info));
  const auto iterator = table->NewIterator(TableAccess::kLookup);

  for (auto record = records_.begin(); record != records_.end(); ++record) {
    CAIRN_ASSERT_OK(iterator->Seek(record->first + "+"));
    const auto next = std::next(record);
    ASSERT_EQ(iterator->Valid(), next != records_.end());
    if (iterator->Valid()) EXPECT_EQ(iterator->key(), next->first);
  }
}

TEST_P(DividedTableTest, HidesRecordsOfOlderTables) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableInfo newer, WriteDivided(records_, begins_));
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const TableInfo older,
      WriteDivided({{Chunk("b"), "old"}, {Chunk("c"), "old"}, {Chunk("x"), "6"}, {Value("e"), "x"}},
                   {Chunk("b")}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack stack,
                             TableStack::Open(storage(), std::vector{newer, older}));

  CAIRN_ASSERT_OK_AND_ASSIGN(const Records all, ScanAll(stack));

  EXPECT_EQ(all, (Records{{Tensor("a"), "1"},
                          {Chunk("a"), "2"},
                          {Chunk("b"), "3"},
                          {Chunk("d"), "4"},
                          {Chunk("x"), "6"},
                          {Value("e"), "5"}}));
}

TEST_P(DividedTableTest, OnlyRangesThatAreReadAreOpened) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableInfo info, WriteDivided(records_, begins_));
  CAIRN_ASSERT_OK(storage()->Remove(ObjectName(ObjectKind::kTable, info.ranges[1].id)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto table, TableReader::Open(storage(), info));

  CAIRN_EXPECT_OK(table->Get(Chunk("b")));
  CAIRN_EXPECT_OK(table->Get(Chunk("d")));
  CAIRN_EXPECT_OK(table->Get(Value("e")));
  EXPECT_THAT(table->Get(Chunk("c")), IsError(ErrorCode::kNotFound, ""));
  EXPECT_THAT(ReadAll(*table), IsError(ErrorCode::kNotFound, ""));
}

TEST_P(DividedTableTest, OverlayHasWhatDiffersInItsRanges) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableInfo info, WriteDivided(records_, begins_));
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack below,
                             TableStack::Open(storage(), std::vector{info}));

  CAIRN_ASSERT_OK_AND_ASSIGN(const Records chunks,
                             WriteOverlay({{Chunk("b"), "3"}, {Chunk("c"), "new"}}, below,
                                          {{.begin = Chunk("b"), .end = Chunk("d")}}));
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const Records others,
      WriteOverlay({{Tensor("a"), "1"}, {Tensor("b"), "new"}}, below,
                   {{.begin = {}, .end = Chunk("")}, {.begin = Value(""), .end = {}}}));
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const Records none,
      WriteOverlay({{Chunk("d"), "4"}}, below, {{.begin = Chunk("c"), .end = Value("")}}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Records deleted,
                             WriteOverlay({}, below, {{.begin = Chunk("a"), .end = Chunk("c")}}));

  EXPECT_EQ(chunks, (Records{{Chunk("c"), "new"}}));
  EXPECT_EQ(others, (Records{{Tensor("b"), "new"}, {Value("e"), ""}}));
  EXPECT_EQ(none, Records());
  EXPECT_EQ(deleted, (Records{{Chunk("a"), ""}, {Chunk("b"), ""}}));
}

TEST_P(DividedTableTest, ListOfTablesHasRanges) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableInfo info, WriteDivided(records_, begins_));
  TableInfo plain = info;
  plain.ranges.clear();

  const auto record = EncodeTablesOf(info.ranges, std::vector{plain, info});

  CAIRN_ASSERT_OK_AND_ASSIGN(const auto after, DecodeTables(record));
  EXPECT_EQ(after, (std::vector{plain, info}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto ranges, DecodeTableRanges(record));
  EXPECT_EQ(ranges, info.ranges);
  for (size_t size = 0; size < record.size(); ++size) {
    EXPECT_THAT(DecodeTables(std::span(record).first(size)), IsError(ErrorCode::kDataLoss, ""));
  }
}

TEST(TableRangesTest, RangesAscendAndAreChunks) {
  EXPECT_TRUE(AreTableRanges({}));
  EXPECT_TRUE(AreTableRanges(std::vector<TableRange>{{.begin = Chunk("")}, {.begin = Chunk("b")}}));
  EXPECT_FALSE(
      AreTableRanges(std::vector<TableRange>{{.begin = Chunk("b")}, {.begin = Chunk("b")}}));
  EXPECT_FALSE(AreTableRanges(std::vector<TableRange>{{.begin = Tensor("a")}}));
  EXPECT_FALSE(AreTableRanges(std::vector<TableRange>{{.begin = Value("a")}}));
}

}  // namespace
}  // namespace cairn::kv::internal
