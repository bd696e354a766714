// Stores that earlier builds wrote must always open and load.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>

#include "kv/options.h"
#include "kv/step_info.h"
#include "kv/store.h"
#include "tests/golden/golden_contents.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::kv {
namespace {

using cairn::testing::ScopedTempDir;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

class GoldenStoreTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    // Copy the store: git has no empty directories, and writes must not change the original.
    std::filesystem::copy(std::string(CAIRN_GOLDEN_DIR) + "/" + GetParam(), path_,
                          std::filesystem::copy_options::recursive);
  }
  ScopedTempDir dir_;
  const std::string path_ = dir_ / "store";
};

TEST_P(GoldenStoreTest, LoadsAndVerifies) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, LoadAll(path_));
  EXPECT_TRUE(steps == GoldenSteps());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path_, OpenMode::kRead));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto damage, Verify(*snapshot));
  EXPECT_THAT(damage, IsEmpty());
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo info, snapshot->FindStep(30));
  EXPECT_EQ(info.base_step, 20u);
  EXPECT_EQ(info.reused_chunk_count, 1u);
}

TEST_P(GoldenStoreTest, AcceptsNewStepsAndRebuildsItsIndex) {
  auto expected = GoldenSteps();
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path_, OpenMode::kWrite));
    EXPECT_THAT(store->recovery_notes(), IsEmpty());
    CAIRN_ASSERT_OK(SaveSample(*store, GoldenStep(40, 2)));
    CAIRN_ASSERT_OK(store->Delete(std::array<uint64_t, 1>{10}));
  }
  expected.erase(10);
  expected[40] = GoldenStep(40, 2);
  std::filesystem::remove(path_ + "/index/CURRENT");
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto report, Store::RebuildIndex(path_));
  EXPECT_THAT(report.lost, IsEmpty());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, LoadAll(path_));
  EXPECT_TRUE(steps == expected);
}

class GoldenPagesTest : public GoldenStoreTest {};

TEST_P(GoldenPagesTest, LoadsAndVerifies) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, LoadAll(path_));
  EXPECT_TRUE(steps == PagesGoldenSteps());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path_, OpenMode::kRead));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto damage, Verify(*snapshot));
  EXPECT_THAT(damage, IsEmpty());
  // The page and the tail that each step wrote, and the page that the steps share.
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto usage, snapshot->SegmentUsage());
  std::vector<uint64_t> live_bytes;
  for (const Usage& one : usage) live_bytes.push_back(one.live_bytes);
  EXPECT_THAT(live_bytes, UnorderedElementsAre(kPageBytes, kPageBytes, 15'464u, 15'464u));
}

TEST_P(GoldenPagesTest, AcceptsNewStepsAndRebuildsItsIndex) {
  auto expected = PagesGoldenSteps();
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path_, OpenMode::kWrite));
    EXPECT_THAT(store->recovery_notes(), IsEmpty());
    CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo saved, SaveSample(*store, PagesGoldenStep(4)));
    EXPECT_EQ(saved.written_bytes, 15'464u);
    CAIRN_ASSERT_OK(store->Delete(std::array<uint64_t, 1>{2}));
  }
  expected.erase(2);
  expected[4] = PagesGoldenStep(4);
  std::filesystem::remove(path_ + "/index/CURRENT");
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto report, Store::RebuildIndex(path_));
  EXPECT_THAT(report.lost, IsEmpty());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, LoadAll(path_));
  EXPECT_TRUE(steps == expected);
}

INSTANTIATE_TEST_SUITE_P(Every, GoldenPagesTest, ::testing::Values("v1-pages"));
INSTANTIATE_TEST_SUITE_P(Every, GoldenStoreTest, ::testing::Values("v1"));

}  // namespace
}  // namespace cairn::kv
