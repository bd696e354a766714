// Goal: the cost of an open does not depend on the number of steps that were ever saved.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>

#include "kv/internal/io/file.h"
#include "kv/options.h"
#include "kv/store.h"
#include "tests/kv/sample_step.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::kv {
namespace {

using cairn::testing::ScopedTempDir;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

constexpr uint64_t kStepCount = 300;
constexpr SampleShape kTiny{.tensor_count = 3, .largest_bytes = 500};

struct IndexSize {
  uint64_t table_count = 0;
  uint64_t manifest_bytes = 0;
};

IndexSize MeasureIndex(const std::string& path) {
  IndexSize size;
  for (const auto& entry : std::filesystem::directory_iterator(path + "/index")) {
    const std::string name = entry.path().filename();
    if (name.ends_with(".sst")) ++size.table_count;
    if (name.starts_with("MANIFEST-")) size.manifest_bytes += entry.file_size();
  }
  return size;
}

class ManyStepsTest : public ::testing::Test {
 protected:
  ScopedTempDir dir_{std::filesystem::exists("/dev/shm") ? "/dev/shm" : ""};
  const std::string path_ = dir_ / "store";
};

TEST_F(ManyStepsTest, IndexOfHundredsOfStepsStaysInFewFiles) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, Store::Open(path_, OpenMode::kWrite));
  for (uint64_t step = 0; step < kStepCount; ++step) {
    CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(step, 0, kTiny)));
  }
  const IndexSize size = MeasureIndex(path_);
  fmt::print("{} steps: {} tables, {} bytes of RocksDB manifest\n", kStepCount, size.table_count,
             size.manifest_bytes);
  EXPECT_LT(size.table_count, 100u);
  EXPECT_LT(size.manifest_bytes, 1u << 20);

  // A reader opens every table, and must not exceed the default limit of descriptors.
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

TEST_F(ManyStepsTest, DeletedStepsLeaveNothingBehindInTheIndex) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, Store::Open(path_, OpenMode::kWrite));
  for (uint64_t step = 0; step < kStepCount; ++step) {
    CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(step, 0, kTiny)));
    if (step < 2) continue;
    CAIRN_ASSERT_OK(writer->Delete(std::array{step - 2}));
  }
  const IndexSize size = MeasureIndex(path_);
  fmt::print("2 steps left of {}: {} tables, {} bytes of RocksDB manifest\n", kStepCount,
             size.table_count, size.manifest_bytes);
  EXPECT_LT(size.table_count, 100u);
  EXPECT_LT(size.manifest_bytes, 1u << 20);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto leftovers, FindLeftovers(path_));
  EXPECT_THAT(leftovers, ::testing::IsEmpty());
}

}  // namespace
}  // namespace cairn::kv
