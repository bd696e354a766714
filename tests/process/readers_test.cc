// Goal: readers that open and close the store while a writer commits, overwrites and deletes get no
// error, if the grace period is longer than their reads. Without a grace period they get kNotFound
// for a step that was deleted in the meantime, and nothing else. The writer makes
// CAIRN_READERS_CHANGES (300) changes.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "kv/base/options.h"
#include "kv/store.h"
#include "tests/fault/operations.h"
#include "tests/process/child.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"
#include "tests/support/store_address.h"

namespace cairn::kv {
namespace {

using cairn::testing::Child;
using cairn::testing::ScopedTempDir;
using ::testing::IsEmpty;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

class ReadersTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(ReadersTest, OpensAndLoadsConcurrentWithABusyWriterSucceed) {
  ScopedTempDir dir(cairn::testing::FastDirectory());
  const std::string path = cairn::testing::NewStoreAddress(dir, "store");
  CAIRN_ASSERT_OK(Store::Open(path, OpenMode::kWrite));  // creates it
  const char* given = std::getenv("CAIRN_READERS_CHANGES");
  const std::string count = given != nullptr ? given : "300";
  Child writer({CAIRN_STORE_PROGRAM, "churn", path, count, std::to_string(GetParam())});
  std::vector<std::unique_ptr<Child>> readers;
  for (int i = 0; i < 2; ++i) {
    readers.push_back(
        std::make_unique<Child>(std::vector<std::string>{CAIRN_STORE_PROGRAM, "read-loop", path}));
    ASSERT_EQ(readers.back()->ReadLine(), "ready");
  }
  writer.Say("go");
  const std::vector<std::string> changes = writer.ReadLines();
  EXPECT_EQ(writer.Wait(), 0) << (changes.empty() ? "" : changes.back());
  unsigned long long opens = 0, loads = 0, gone = 0;
  for (const auto& reader : readers) {
    reader->CloseInput();
    const std::vector<std::string> lines = reader->ReadLines();
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_EQ(reader->Wait(), 0) << lines[0];
    unsigned long long one_opens = 0, one_loads = 0, one_gone = 0;
    ASSERT_EQ(std::sscanf(lines[0].c_str(), "opens %llu loads %llu gone %llu", &one_opens,
                          &one_loads, &one_gone),
              3)
        << lines[0];
    opens += one_opens;
    loads += one_loads;
    gone += one_gone;
  }
  fmt::print("{} changes, {} opens, {} loads, {} loads of a step that was deleted\n",
             changes.size() / 2, opens, loads, gone);
  EXPECT_TRUE(GetParam() == 0 || gone == 0) << "a step was not readable for the grace period";
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path, OpenMode::kRead));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto damage, Verify(*snapshot));
  EXPECT_THAT(damage, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(GraceMs, ReadersTest, ::testing::Values(0, 60'000),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace cairn::kv
