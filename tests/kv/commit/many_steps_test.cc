// Goal: the cost of an open does not depend on the number of steps that were ever saved.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <set>
#include <unordered_set>

#include "kv/base/options.h"
#include "kv/root/internal/root_log.h"
#include "kv/root/internal/step_list.h"
#include "kv/storage/open/open_storage.h"
#include "kv/store.h"
#include "kv/table/internal/table_reader.h"
#include "tests/kv/sample_step.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::kv {
namespace {

using cairn::testing::ScopedTempDir;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

constexpr uint64_t kStepCount = 300;
constexpr SampleShape kTiny{.tensor_count = 3, .largest_bytes = 500};

uint64_t FileCount(const std::string& directory) {
  if (!std::filesystem::exists(directory)) return 0;
  return static_cast<uint64_t>(std::distance(std::filesystem::directory_iterator(directory), {}));
}

class ManyStepsTest : public ::testing::Test {
 protected:
  /// Checks what a reader must read before the first record.
  void CheckRoots() {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto storage, OpenStorage(path_));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto root, internal::FindNewest(*storage));
    ASSERT_TRUE(root.has_value());
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto bytes, internal::EncodeRoot(*root));
    fmt::print("{} roots, {} pages, newest root of {} bytes\n", FileCount(path_ + "/roots"),
               FileCount(path_ + "/pages"), bytes.size());
    EXPECT_LE(FileCount(path_ + "/roots"), internal::kKeptRoots + 1);
    EXPECT_LE(root->recent.size(), internal::kMaxRecentSteps);
    EXPECT_LT(bytes.size(), 64u << 10);
  }

  ScopedTempDir dir_{std::filesystem::exists("/dev/shm") ? "/dev/shm" : ""};
  const std::string path_ = dir_ / "store";
  const StoreOptions no_grace_{.grace = std::chrono::milliseconds(0)};
};

TEST_F(ManyStepsTest, RootOfHundredsOfStepsIsSmall) {
  CAIRN_ASSERT_OK_AND_ASSIGN(auto writer, Store::Open(path_, OpenMode::kWrite, no_grace_));
  for (uint64_t step = 0; step < kStepCount; ++step) {
    CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(step, 0, kTiny)));
  }
  CheckRoots();
  EXPECT_LE(FileCount(path_ + "/tables"), kStepCount);
  writer.reset();  // with its open files

  // A reader of all steps must not exceed the default limit of descriptors.
  rlimit old_limit;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old_limit), 0);
  rlimit limit = old_limit;
  limit.rlim_cur = 256;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  const auto steps = LoadAll(path_);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old_limit), 0);
  ASSERT_TRUE(cairn::testing::IsOk(steps));
  EXPECT_EQ(steps->size(), kStepCount);
  EXPECT_TRUE(steps->at(kStepCount - 1) == MakeSample(kStepCount - 1, 0, kTiny));
}

TEST_F(ManyStepsTest, FurtherSegmentsOfEachStepAreAllSegments) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, Store::Open(path_, OpenMode::kWrite, no_grace_));
  for (uint64_t step = 0; step < 40; ++step) {
    CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(step, 0, kTiny)));
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, writer->Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, snapshot->Steps());

  std::unordered_set<uint64_t> known;
  std::set<std::string> names;
  for (const StepInfo& step : steps) {
    const std::unordered_set<uint64_t> before = known;
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto further, snapshot->FurtherSegmentsOf(step, known));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto all, snapshot->SegmentsOf(step));
    EXPECT_TRUE(std::ranges::is_sorted(further, {}, &SegmentInfo::segment_id));
    for (const SegmentInfo& segment : further) {
      EXPECT_FALSE(before.contains(segment.segment_id));
      EXPECT_TRUE(names.insert(segment.name).second);
    }
    for (const SegmentInfo& segment : all) EXPECT_TRUE(known.contains(segment.segment_id));
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto segments, snapshot->Segments());
  EXPECT_EQ(names.size(), segments.size());
  EXPECT_GE(names.size(), steps.size());
  for (const SegmentInfo& segment : segments) EXPECT_TRUE(names.contains(segment.name));
}

TEST_F(ManyStepsTest, DeletedStepsLeaveNothingBehind) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, Store::Open(path_, OpenMode::kWrite, no_grace_));
  for (uint64_t step = 0; step < kStepCount; ++step) {
    CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(step, 0, kTiny)));
    if (step < 2) continue;
    CAIRN_ASSERT_OK(writer->Delete(std::array{step - 2}));
  }
  CheckRoots();
  EXPECT_LE(FileCount(path_ + "/tables"), 2 * internal::kMaxTables);
  EXPECT_EQ(FileCount(path_ + "/pages"), 0u);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto leftovers, FindLeftovers(path_));
  EXPECT_THAT(leftovers, ::testing::IsEmpty());
}

}  // namespace
}  // namespace cairn::kv
