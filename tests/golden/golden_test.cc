// Stores that earlier builds wrote must always open and load.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <filesystem>

#include "kv/base/options.h"
#include "kv/base/step_info.h"
#include "kv/root/internal/root_log.h"
#include "kv/storage/open/open_storage.h"
#include "kv/store.h"
#include "tests/golden/golden_contents.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::kv {
namespace {

using cairn::testing::IsError;
using cairn::testing::ScopedTempDir;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

/// The parameter is the folder of the store.
class GoldenTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    // Copy the store: git has no empty directories, and writes must not change the original.
    std::filesystem::copy(std::string(CAIRN_GOLDEN_DIR) + "/" + GetParam(), path_,
                          std::filesystem::copy_options::recursive);
  }
  Result<std::unique_ptr<Store>> OpenWriter() {
    return Store::Open(path_, OpenMode::kWrite, {.grace = std::chrono::milliseconds(0)});
  }
  /// Loads every byte of every step, and verifies the store.
  void ExpectSteps(const std::map<uint64_t, SampleStep>& expected) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, LoadAll(path_));
    EXPECT_TRUE(steps == expected);
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path_, OpenMode::kRead));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->Latest());
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto damage, Verify(*snapshot));
    EXPECT_THAT(damage, IsEmpty());
  }
  /// Recovers the steps from the tables.
  void RebuildWithoutRoots() {
    std::filesystem::remove_all(path_ + "/roots");
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto report, Store::Rebuild(path_));
    EXPECT_THAT(report.lost, IsEmpty());
  }

  ScopedTempDir dir_;
  const std::string path_ = dir_ / "store";
};

class GoldenStoreTest : public GoldenTest {};

TEST_P(GoldenStoreTest, LoadsAndVerifies) {
  ExpectSteps(GoldenSteps());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path_, OpenMode::kRead));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo info, snapshot->FindStep(30));
  EXPECT_EQ(info.base_step, 20u);
  EXPECT_EQ(info.reused_chunk_count, 1u);
}

TEST_P(GoldenStoreTest, IsRebuiltWithoutRoots) {
  RebuildWithoutRoots();
  ExpectSteps(GoldenSteps());
}

TEST_P(GoldenStoreTest, AcceptsNewStepsAndIsRebuilt) {
  auto expected = GoldenSteps();
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, OpenWriter());
    CAIRN_ASSERT_OK(SaveSample(*store, GoldenStep(40, 2)));
    CAIRN_ASSERT_OK(store->Delete(std::array<uint64_t, 1>{10}));
  }
  expected.erase(10);
  expected[40] = GoldenStep(40, 2);
  ExpectSteps(expected);
  RebuildWithoutRoots();
  ExpectSteps(expected);
}

class GoldenPagesTest : public GoldenTest {};

TEST_P(GoldenPagesTest, LoadsAndVerifies) {
  ExpectSteps(PagesGoldenSteps());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path_, OpenMode::kRead));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->Latest());
  // The page and the tail that each step wrote, and the page that the steps share.
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto usage, snapshot->SegmentUsage());
  std::vector<uint64_t> live_bytes;
  for (const Usage& one : usage) live_bytes.push_back(one.live_bytes);
  EXPECT_THAT(live_bytes, UnorderedElementsAre(kPageBytes, kPageBytes, 15'464u, 15'464u));
}

TEST_P(GoldenPagesTest, IsRebuiltWithoutRoots) {
  RebuildWithoutRoots();
  ExpectSteps(PagesGoldenSteps());
}

TEST_P(GoldenPagesTest, AcceptsNewStepsAndIsRebuilt) {
  auto expected = PagesGoldenSteps();
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, OpenWriter());
    CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo saved, SaveSample(*store, PagesGoldenStep(4)));
    EXPECT_EQ(saved.written_bytes, 15'464u);
    CAIRN_ASSERT_OK(store->Delete(std::array<uint64_t, 1>{2}));
  }
  expected.erase(2);
  expected[4] = PagesGoldenStep(4);
  ExpectSteps(expected);
  RebuildWithoutRoots();
  ExpectSteps(expected);
}

class GoldenRanksTest : public GoldenTest {};

TEST_P(GoldenRanksTest, LoadsAndVerifies) {
  ExpectSteps(RanksGoldenSteps());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto storage, OpenStorage(path_));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto root, internal::FindNewest(*storage));
  EXPECT_FALSE(root->pages.empty());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path_, OpenMode::kRead));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->Latest());
  for (const uint64_t step : {kFirstRanksStep, kLastRanksStep}) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo info, snapshot->FindStep(step));
    EXPECT_EQ(info.world_size, 3u);
  }
}

TEST_P(GoldenRanksTest, IsRebuiltWithoutRoots) {
  RebuildWithoutRoots();
  ExpectSteps(RanksGoldenSteps());
}

INSTANTIATE_TEST_SUITE_P(Every, GoldenStoreTest, ::testing::Values("v2"));
INSTANTIATE_TEST_SUITE_P(Every, GoldenPagesTest, ::testing::Values("v2-pages"));
INSTANTIATE_TEST_SUITE_P(Every, GoldenRanksTest, ::testing::Values("v2-ranks"));

}  // namespace
}  // namespace cairn::kv
