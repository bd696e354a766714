// Goal: the clock of the system may be set forward or back by a month at any time. No step is lost,
// no read returns damage or old bytes, and nothing waits for the clock to be right again.
//
// This program has its own version of clock_gettime, so that the clock of the machine is not
// touched. CLOCK_MONOTONIC, with which Cairn measures durations, is not affected, as in a real
// system.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kv/base/options.h"
#include "kv/copy_steps.h"
#include "kv/read/snapshot.h"
#include "kv/root/internal/lease.h"
#include "kv/storage/open/open_storage.h"
#include "kv/store.h"
#include "tests/fault/operations.h"
#include "tests/kv/store_checks.h"
#include "tests/process/child.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::testing {
namespace {

std::atomic<int64_t> offset_seconds = 0;  // of the clock of the system
std::atomic<int64_t> jump_seconds = 0;    // is added to it at the reading `jump_at`
std::atomic<uint64_t> jump_at = 0;        // readings are counted from 1
std::atomic<uint64_t> readings = 0;

/// While it exists, the clock is wrong from its n-th reading on.
class ClockJump {
 public:
  explicit ClockJump(int64_t seconds, uint64_t at = 1) {
    readings = 0;
    jump_seconds = seconds;
    jump_at = at;
  }
  ~ClockJump() {
    jump_at = 0;
    offset_seconds = 0;
  }
  ClockJump(const ClockJump&) = delete;
  ClockJump& operator=(const ClockJump&) = delete;
  bool happened() const { return readings >= jump_at; }
};

}  // namespace
}  // namespace cairn::testing

// NOLINTNEXTLINE(readability-identifier-naming): the function of the C library
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  using namespace cairn::testing;  // NOLINT(google-build-using-namespace)
  const auto result = static_cast<int>(::syscall(SYS_clock_gettime, clock, time));
  if (result != 0 || clock != CLOCK_REALTIME) return result;
  if (++readings == jump_at) offset_seconds += jump_seconds;
  time->tv_sec += offset_seconds;
  return 0;
}

namespace cairn::kv {
namespace {

using cairn::testing::Child;
using cairn::testing::ClockJump;
using cairn::testing::IsError;
using cairn::testing::ScopedTempDir;
using ::testing::Optional;
using ::testing::StartsWith;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)
namespace fs = std::filesystem;

constexpr int64_t kMonthSeconds = 30 * 86'400;
constexpr std::chrono::minutes kGrace{1};

class ClockTest : public ::testing::Test {
 protected:
  void SetUp() override { CAIRN_ASSERT_OK_AND_ASSIGN(history_, MakeHistory(dir_ / "history")); }
  void Restore() const {
    for (const std::string& path : {path_, target_}) fs::remove_all(path);
    fs::copy(dir_ / "history", path_, fs::copy_options::recursive);
  }
  static StoreOptions Options(std::chrono::milliseconds grace = kGrace) {
    StoreOptions options = SmallBlocks();
    options.grace = grace;
    return options;
  }
  static Result<std::unique_ptr<Store>> OpenWriter(const std::string& path,
                                                   const StoreOptions& options = Options()) {
    return Store::Open(path, OpenMode::kWrite, options);
  }
  static void ExpectSteps(const std::string& path, const Steps& expected) {
    kv::testing::ExpectSteps(path, expected);
    ExpectSound(path);
  }
  /// The next writer saves, and nothing is left over.
  static void ExpectUsable(const std::string& path, Steps steps) {
    {
      CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, OpenWriter(path));
      CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(9)));
      steps[9] = MakeSample(9);
    }
    ExpectSteps(path, steps);
    ExpectNoLeftovers(path);
  }

  /// Runs `operation`, which leaves `expected`, with a jump at its n-th reading of the clock, for
  /// n = 1, 2, ... while it reads the clock that often. `path` is the store that it changes.
  void JumpDuring(const std::string& path, const Steps& expected,
                  const std::function<Result<void>()>& operation) {
    for (const int64_t seconds : {kMonthSeconds, -kMonthSeconds}) {
      bool happened = true;
      for (uint64_t n = 1; happened; ++n) {
        SCOPED_TRACE(fmt::format("{} days at reading {}", seconds / 86'400, n));
        Restore();
        {
          const ClockJump jump(seconds, n);
          CAIRN_EXPECT_OK(operation());
          happened = jump.happened();
          ExpectSteps(path, expected);  // at the time after the jump
          if (n % 2 == 0) ExpectUsable(path, expected);
        }
        if (n % 2 == 1) ExpectUsable(path, expected);  // the clock is right again
        if (HasFailure()) return;
        ++jumps_;
      }
    }
    EXPECT_GT(jumps_, 4u);
  }

  ScopedTempDir dir_{cairn::testing::FastDirectory()};
  const std::string path_ = dir_ / "store", target_ = dir_ / "target";
  Steps history_;
  uint64_t jumps_ = 0;
};

class ClockJumpTest : public ClockTest, public ::testing::WithParamInterface<Operation> {};

TEST_P(ClockJumpTest, LosesNothingDuringTheOperation) {
  JumpDuring(path_, After(GetParam(), history_), [this]() -> Result<void> {
    CAIRN_TRY_ASSIGN(const auto store, OpenWriter(path_));
    CAIRN_TRY(Perform(GetParam(), *store));
    return store->Close();
  });
}
INSTANTIATE_TEST_SUITE_P(Operations, ClockJumpTest, ::testing::ValuesIn(kOperations),
                         kOperationTestName);

// A copy announces each segment that it has finished, until a time after which it may be removed.
TEST_F(ClockTest, LosesNothingDuringACopy) {
  JumpDuring(target_, history_, [this]() -> Result<void> {
    CAIRN_TRY_ASSIGN(const auto source, Store::Open(path_, OpenMode::kRead));
    CAIRN_TRY_ASSIGN(const auto target, OpenWriter(target_));
    CAIRN_TRY(CopySteps(*source, *target,
                        {.steps = {1, 2, 3}, .threads = 1, .keep_interval = {}, .keep_bytes = 1}));
    return target->Close();
  });
}

TEST_F(ClockTest, ReadersOfADeletedStepReadItOrLearnThatItWasDeleted) {
  for (const int64_t seconds : {kMonthSeconds, -kMonthSeconds}) {
    Restore();
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, OpenWriter(path_));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, ReadLatest(path_));
    CAIRN_ASSERT_OK(writer->Delete(std::array<uint64_t, 1>{3}));
    const ClockJump jump(seconds);
    CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(4)));
    const auto read = LoadSample(*snapshot, 3);
    if (seconds < 0) {
      CAIRN_ASSERT_OK(read);
      EXPECT_TRUE(*read == history_.at(3));
    } else {
      EXPECT_THAT(read, IsError(ErrorCode::kNotFound, "deleted while"));
    }
    CAIRN_ASSERT_OK(writer->Close());
  }
}

TEST_F(ClockTest, ALiveWriterOfThisMachineKeepsTheStore) {
  for (const int64_t seconds : {kMonthSeconds, -kMonthSeconds}) {
    Restore();
    std::unique_ptr<Store> writer;
    {
      const ClockJump jump(seconds);
      CAIRN_ASSERT_OK_AND_ASSIGN(writer, OpenWriter(path_));
    }
    // The other process has the right clock.
    EXPECT_THAT(Child({CAIRN_STORE_PROGRAM, "hold", path_}).ReadLine(),
                Optional(StartsWith("error Conflict")));
    {
      const ClockJump jump(-seconds);
      CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(4)));
    }
    EXPECT_THAT(Child({CAIRN_STORE_PROGRAM, "hold", path_}).ReadLine(),
                Optional(StartsWith("error Conflict")));
    CAIRN_ASSERT_OK(writer->Close());
    ExpectUsable(path_, After(Operation::kCommit, history_));
  }
}

// A lease of another machine is judged by the clocks of both.
TEST_F(ClockTest, AWriterWhoseLeaseSeemsToHaveExpiredIsFenced) {
  Restore();
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto first, OpenWriter(path_));
  CAIRN_ASSERT_OK(SaveSample(*first, MakeSample(4)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto storage, OpenStorage(path_));
  const std::string name = internal::LeaseName(first->session());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto bytes, storage->Read(name, 1 << 20));
  internal::Lease lease = *internal::DecodeLease(bytes);
  lease.boot_id = "another machine";
  CAIRN_ASSERT_OK(storage->Put(name, internal::EncodeLease(lease)));
  EXPECT_THAT(OpenWriter(path_), IsError(ErrorCode::kConflict, "has this store open"));

  const ClockJump jump(kMonthSeconds);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto second, OpenWriter(path_));
  CAIRN_ASSERT_OK(SaveSample(*second, MakeSample(5)));
  EXPECT_THAT(SaveSample(*first, MakeSample(6)), IsError(ErrorCode::kConflict, "taken over"));
  CAIRN_ASSERT_OK(second->Close());
  Steps expected = After(Operation::kCommit, history_);
  expected[5] = MakeSample(5);
  ExpectSteps(path_, expected);
}

TEST_F(ClockTest, TheOrderOfStepsAndVersionsDoesNotDependOnTimes) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, OpenWriter(path_));
  for (const uint64_t step : {1, 2, 3}) {
    // Each is a month earlier than the one before, and replaced another month earlier.
    const auto months = static_cast<int64_t>(step) * 2 * kMonthSeconds;
    {
      const ClockJump jump(-months);
      CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(step)));
    }
    const ClockJump jump(-months - kMonthSeconds);
    CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(step, 1), /*overwrite=*/true));
  }
  CAIRN_ASSERT_OK(writer->Close());
  const Steps expected{{1, MakeSample(1, 1)}, {2, MakeSample(2, 1)}, {3, MakeSample(3, 1)}};
  ExpectSteps(path_, expected);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, ReadLatest(path_));
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo latest, snapshot->FindStep(std::nullopt));
  EXPECT_EQ(latest.step, 3u);
  CAIRN_ASSERT_OK_AND_ASSIGN(const std::vector<StepInfo> steps, snapshot->Steps());
  EXPECT_LT(steps[0].created_unix_ns, steps[1].created_unix_ns) << "times follow the order";
  // Both versions of each step have tables.
  fs::remove_all(path_ + "/roots");
  fs::create_directory(path_ + "/roots");
  CAIRN_ASSERT_OK(Store::Rebuild(path_, Options()));
  ExpectSteps(path_, expected);
}

}  // namespace
}  // namespace cairn::kv
