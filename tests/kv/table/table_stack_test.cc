// The newest record of a key counts.

#include "kv/table/internal/table_stack.h"

#include "kv/table/internal/merge_iterator.h"
#include "tests/kv/table/table_test_support.h"

namespace cairn::kv::internal {
namespace {

using cairn::testing::IsError;

class TableStackTest : public TableStorageTest {
 protected:
  /// Writes the tables, newest first.
  Result<TableStack> MakeStack(const std::vector<Records>& tables) {
    std::vector<TableInfo> infos;
    for (const Records& records : tables) {
      CAIRN_TRY_ASSIGN(const TableInfo info, Write(records));
      infos.push_back(info);
    }
    return TableStack::Open(storage(), infos);
  }
};
CAIRN_INSTANTIATE_STORAGES(TableStackTest);

TEST_P(TableStackTest, NewerRecordsAndTombstonesHideOlderOnes) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack stack,
                             MakeStack({{{"a", "new"}, {"b", ""}, {"e", ""}},
                                        {{"b", "old"}, {"c", "middle"}, {"d", ""}},
                                        {{"a", "old"}, {"c", "old"}, {"d", "old"}, {"f", "x"}}}));

  CAIRN_ASSERT_OK_AND_ASSIGN(const Records records, ScanAll(stack));

  EXPECT_EQ(records, (Records{{"a", "new"}, {"c", "middle"}, {"f", "x"}}));
  for (const char* key : {"", "a", "b", "c", "d", "e", "f", "g"}) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto value, stack.Get(key));
    const auto expected = records.find(key);
    EXPECT_EQ(value ? Text(*value) : "absent",
              expected != records.end() ? expected->second : "absent")
        << key;
  }
}

TEST_P(TableStackTest, ScanReturnsOnePrefix) {
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const TableStack stack,
      MakeStack({{{"a", "1"}, {"ab", "2"}, {"b", "3"}}, {{"aa", "4"}, {"ab", "5"}, {"abc", "6"}}}));

  CAIRN_ASSERT_OK_AND_ASSIGN(const Records records, ScanAll(stack, "ab"));

  EXPECT_EQ(records, (Records{{"ab", "2"}, {"abc", "6"}}));
}

TEST_P(TableStackTest, ScanStopsWhenTheCallbackWantsNoMoreOrFails) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack stack, MakeStack({{{"a", "1"}, {"b", "2"}}}));
  int calls = 0;

  CAIRN_EXPECT_OK(stack.Scan({}, [&](auto, auto) -> Result<bool> { return ++calls > 5; }));
  EXPECT_EQ(calls, 1);
  EXPECT_THAT(
      stack.Scan({},
                 [&](auto, auto) -> Result<bool> { return Fail(ErrorCode::kCancelled, "enough"); }),
      IsError(ErrorCode::kCancelled, "enough"));
}

TEST_P(TableStackTest, EmptyStackHasNoRecords) {
  const TableStack stack;

  CAIRN_ASSERT_OK_AND_ASSIGN(const Records records, ScanAll(stack));
  EXPECT_EQ(records, Records{});
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto value, stack.Get("a"));
  EXPECT_FALSE(value.has_value());
}

TEST_P(TableStackTest, NineTablesAreRefused) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableInfo info, Write({{"a", "1"}}));

  EXPECT_THAT(TableStack::Open(storage(), std::vector(9, info)),
              IsError(ErrorCode::kDataLoss, "more than the limit"));
}

}  // namespace
}  // namespace cairn::kv::internal
