// Tables stay open for the next reads, and those that were removed are not kept.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <thread>

#include "kv/table/internal/table_reader.h"
#include "tests/kv/table/table_test_support.h"

namespace cairn::kv::internal {
namespace {

using cairn::testing::IsError;

class OpenTablesTest : public TableStorageTest {
 protected:
  TableInfo NewTable(const std::string& value) {
    const auto info = Write({{"key", value}});
    EXPECT_TRUE(cairn::testing::IsOk(info));
    return *info;
  }
  /// Returns the value of "key" in the table.
  static Result<std::string> ValueIn(OpenTables& tables, const TableInfo& info) {
    CAIRN_TRY_ASSIGN(const TableStack stack, tables.OpenStack({&info, 1}));
    CAIRN_TRY_ASSIGN(const auto value, stack.Get("key"));
    return value ? Text(*value) : "(none)";
  }
};
CAIRN_INSTANTIATE_STORAGES(OpenTablesTest);

TEST_P(OpenTablesTest, StepsThatShareTablesShareTheirReaders) {
  OpenTables tables(storage());
  const std::vector<TableInfo> first = {NewTable("old")};
  const std::vector<TableInfo> second = {NewTable("new"), first[0]};
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack a, tables.OpenStack(first));
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack b, tables.OpenStack(second));
  EXPECT_EQ(a.tables()[0], b.tables()[1]);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto value, b.Get("key"));
  EXPECT_EQ(Text(*value), "new");
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack none, tables.OpenStack({}));
  EXPECT_TRUE(none.tables().empty());
}

TEST_P(OpenTablesTest, ForgottenTableIsOpenedAgainAndOpenStacksKeepIt) {
  OpenTables tables(storage());
  const TableInfo info = NewTable("value");
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack before, tables.OpenStack({&info, 1}));
  tables.Forget(info.id);
  tables.Forget(info.id);
  CAIRN_ASSERT_OK_AND_ASSIGN(const TableStack after, tables.OpenStack({&info, 1}));
  EXPECT_NE(before.tables()[0], after.tables()[0]);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto value, before.Get("key"));
  EXPECT_EQ(Text(*value), "value");

  tables.Forget(info.id);
  CAIRN_ASSERT_OK(storage()->Remove(ObjectName(ObjectKind::kTable, info.id)));
  EXPECT_THAT(ValueIn(tables, info), IsError(ErrorCode::kNotFound, ""));
}

TEST_P(OpenTablesTest, AnotherDescriptionOfTheSameTableIsChecked) {
  OpenTables tables(storage());
  const TableInfo info = NewTable("value");
  CAIRN_ASSERT_OK(ValueIn(tables, info));
  TableInfo wrong = info;
  ++wrong.file_bytes;
  EXPECT_THAT(ValueIn(tables, wrong), IsError(ErrorCode::kDataLoss, ""));
  CAIRN_EXPECT_OK(ValueIn(tables, info));
}

TEST_P(OpenTablesTest, TooManyTablesAreRefused) {
  OpenTables tables(storage());
  std::vector<TableInfo> infos;
  for (size_t i = 0; i <= kMaxTables; ++i) infos.push_back(NewTable("value"));
  EXPECT_THAT(tables.OpenStack(infos), IsError(ErrorCode::kDataLoss, "limit"));
}

TEST_P(OpenTablesTest, ManyTablesAreReadByManyThreads) {
  constexpr int kTables = 150;  // more than are kept open
  OpenTables tables(storage());
  std::vector<TableInfo> infos;
  for (int i = 0; i < kTables; ++i) infos.push_back(NewTable(fmt::format("value{}", i)));
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 2 * kTables; ++i) {
        const int chosen = (i * 7 + thread * 31) % kTables;
        if (i % 20 == 0) tables.Forget(infos[static_cast<size_t>(chosen)].id);
        const auto value = ValueIn(tables, infos[static_cast<size_t>(chosen)]);
        EXPECT_TRUE(cairn::testing::IsOk(value));
        EXPECT_EQ(value.value_or(""), fmt::format("value{}", chosen));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace cairn::kv::internal
