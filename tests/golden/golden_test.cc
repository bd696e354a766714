// Stores that earlier builds wrote must always open and load.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <map>
#include <regex>
#include <string>
#include <vector>

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

using cairn::testing::ScopedTempDir;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

std::string OriginalOf(const std::string& folder) {
  return std::string(CAIRN_GOLDEN_DIR) + "/" + folder;
}

struct Golden {
  std::string folder;
  std::map<uint64_t, SampleStep> steps;
  SampleStep added;
  uint64_t added_bytes;  // payload that no earlier step has
  uint64_t deleted;
};

class GoldenTest : public ::testing::TestWithParam<Golden> {
 protected:
  void SetUp() override {
    // Copy the store: git has no empty directories, and writes must not change the original.
    std::filesystem::copy(OriginalOf(GetParam().folder), path_,
                          std::filesystem::copy_options::recursive);
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

TEST_P(GoldenTest, LoadsAndVerifies) { ExpectSteps(GetParam().steps); }

TEST_P(GoldenTest, IsRebuiltWithoutRoots) {
  RebuildWithoutRoots();
  ExpectSteps(GetParam().steps);
}

TEST_P(GoldenTest, AcceptsNewStepsAndIsRebuilt) {
  auto expected = GetParam().steps;
  const SampleStep& added = GetParam().added;
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(
        const auto store,
        Store::Open(path_, OpenMode::kWrite, {.grace = std::chrono::milliseconds(0)}));
    CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo saved, SaveSample(*store, added));
    EXPECT_EQ(saved.written_bytes, GetParam().added_bytes);
    CAIRN_ASSERT_OK(store->Delete(std::array<uint64_t, 1>{GetParam().deleted}));
  }
  expected.erase(GetParam().deleted);
  expected[added.step] = added;
  ExpectSteps(expected);
  RebuildWithoutRoots();
  ExpectSteps(expected);
}

INSTANTIATE_TEST_SUITE_P(
    Every, GoldenTest,
    ::testing::Values(Golden{"v3", GoldenSteps(), GoldenStep(40, 2), 1'000, 10},
                      Golden{"v3-pages", PagesGoldenSteps(), PagesGoldenStep(4), 15'464, 2},
                      Golden{"v3-ranks", RanksGoldenSteps(), GoldenStep(67, 0), 1'000, 66}),
    [](const auto& info) { return std::regex_replace(info.param.folder, std::regex("-"), ""); });

TEST(GoldenStoreTest, AStepHasItsBase) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(OriginalOf("v3"), OpenMode::kRead));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo info, snapshot->FindStep(30));
  EXPECT_EQ(info.base_step, 20u);
  EXPECT_EQ(info.reused_chunk_count, 1u);
}

TEST(GoldenPagesTest, SegmentsHaveThePagesOfBothSteps) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store,
                             Store::Open(OriginalOf("v3-pages"), OpenMode::kRead));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->Latest());
  // The page and the tail that each step wrote, and the page that the steps share.
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto usage, snapshot->SegmentUsage());
  std::vector<uint64_t> live_bytes;
  for (const Usage& one : usage) live_bytes.push_back(one.live_bytes);
  EXPECT_THAT(live_bytes, UnorderedElementsAre(kPageBytes, kPageBytes, 15'464u, 15'464u));
}

TEST(GoldenRanksTest, TheRootRefersToAPageAndStepsToThreeRanks) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto storage, OpenStorage(OriginalOf("v3-ranks")));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto root, internal::FindNewest(*storage));
  EXPECT_FALSE(root->pages.empty());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store,
                             Store::Open(OriginalOf("v3-ranks"), OpenMode::kRead));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->Latest());
  for (const uint64_t step : {kFirstRanksStep, kLastRanksStep}) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo info, snapshot->FindStep(step));
    EXPECT_EQ(info.world_size, 3u);
  }
}

}  // namespace
}  // namespace cairn::kv
