// Full disks and missing permissions: one clear error, the store as it was, and it remains usable.

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>

#include "kv/base/options.h"
#include "kv/io/file_descriptor.h"
#include "kv/state/internal/attempt_outcome.h"
#include "kv/state/internal/root_change.h"
#include "kv/state/internal/store_state.h"
#include "kv/store.h"
#include "tests/fault/operations.h"
#include "tests/kv/store_checks.h"
#include "tests/process/child.h"
#include "tests/support/fault_hook.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::kv {
namespace {

using cairn::testing::Child;
using cairn::testing::IsError;
using cairn::testing::IsOk;
using cairn::testing::ScopedFaults;
using cairn::testing::ScopedTempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

/// A mount namespace for this process. It is created before any threads are, which would otherwise
/// not be in it.
class OwnMounts : public ::testing::Environment {
 public:
  void SetUp() override {
    error_number = 0;
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("", "/", "", MS_REC | MS_PRIVATE, nullptr) != 0) {
      error_number = errno;
    }
  }
  static inline int error_number = -1;
};
const auto* const own_mounts = ::testing::AddGlobalTestEnvironment(new OwnMounts);

/// A small tmpfs that only this process sees, and that is unmounted when the process ends.
class FullDiskTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (OwnMounts::error_number != 0) {
      GTEST_SKIP() << "cannot create a mount namespace: " << std::strerror(OwnMounts::error_number);
    }
    if (::mount("tmpfs", dir_.path().c_str(), "tmpfs", 0, "size=24m") != 0) {
      GTEST_SKIP() << "cannot mount a small tmpfs here: " << std::strerror(errno);
    }
    mounted_ = true;
    const auto history = MakeHistory(path_);
    ASSERT_TRUE(IsOk(history));
    before_ = *history;
  }
  void TearDown() override {
    if (mounted_) ::umount2(dir_.path().c_str(), MNT_DETACH);
  }

  uint64_t FreeBytes() const {
    struct statvfs status;
    return ::statvfs(dir_.path().c_str(), &status) == 0 ? status.f_bavail * status.f_bsize : 0;
  }
  /// Fills the disk with another file until `leave_bytes` are free.
  void Fill(uint64_t leave_bytes) {
    const FileDescriptor file(
        ::open((dir_ / "filler").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    const uint64_t free_bytes = FreeBytes();
    ASSERT_GT(free_bytes, leave_bytes);
    ASSERT_EQ(::posix_fallocate(file.get(), 0, static_cast<off_t>(free_bytes - leave_bytes)), 0);
  }
  void Unfill() { std::filesystem::remove(dir_ / "filler"); }

  void ExpectAsBefore() { ExpectSteps(path_, before_); }

  ScopedTempDir dir_;
  const std::string path_ = dir_ / "store";
  Steps before_;
  bool mounted_ = false;
};

TEST_F(FullDiskTest, SaveThatDoesNotFitFailsAndASmallerOneSucceeds) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path_, OpenMode::kWrite, SmallBlocks()));
  const uint64_t free_before = FreeBytes();
  EXPECT_THAT(SaveSample(*store, MakeSample(4, 0, {.tensor_count = 40, .largest_bytes = 4 << 20})),
              IsError(ErrorCode::kResourceExhausted, "free some space"));
  ExpectAsBefore();
  EXPECT_GE(FreeBytes() + (256 << 10), free_before) << "the failed save left bytes behind";
  CAIRN_EXPECT_OK(store->Delete(std::array<uint64_t, 1>{2}));
  CAIRN_EXPECT_OK(SaveSample(*store, MakeSample(4)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Steps now, LoadAll(path_));
  EXPECT_EQ(now.size(), 3u);
  EXPECT_TRUE(now.at(4) == MakeSample(4));
}

TEST_F(FullDiskTest, StepCanBeDeletedOnADiskThatIsNearlyFull) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path_, OpenMode::kWrite, SmallBlocks()));
  Fill(64 << 10);
  // Far more than is left.
  EXPECT_THAT(SaveSample(*store, MakeSample(4, 0, {.tensor_count = 12, .largest_bytes = 4 << 20})),
              IsError(ErrorCode::kResourceExhausted, "space"));
  ExpectAsBefore();
  CAIRN_EXPECT_OK(store->Delete(std::array<uint64_t, 2>{2, 3}));
  CAIRN_EXPECT_OK(
      SaveSample(*store, MakeSample(4, 0, {.tensor_count = 3, .largest_bytes = 9'000})));
}

const SampleShape kLarge{.tensor_count = 6, .largest_bytes = 3 << 20};

TEST_F(FullDiskTest, AnOpenRemovesWhatIsDueAndContinues) {
  StoreOptions options = SmallBlocks();
  options.grace = std::chrono::milliseconds(500);
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path_, OpenMode::kWrite, options));
    CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(4, 0, kLarge)));
    CAIRN_ASSERT_OK(store->Delete(std::array<uint64_t, 1>{4}));
    CAIRN_ASSERT_OK(store->Close());
  }
  Fill(0);
  options.grace = std::chrono::hours(1);
  EXPECT_THAT(Store::Open(path_, OpenMode::kWrite, options),
              IsError(ErrorCode::kResourceExhausted, "bytes of deleted steps wait for readers"));
  ExpectAsBefore();
  options.grace = {};
  options.take_over = true;
  EXPECT_THAT(Store::Open(path_, OpenMode::kWrite, options),
              IsError(ErrorCode::kResourceExhausted, "the former writer may continue"));
  ExpectAsBefore();
  options.take_over = false;
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path_, OpenMode::kWrite, options));
  EXPECT_GT(FreeBytes(), uint64_t{1} << 20);
  CAIRN_EXPECT_OK(store->Delete(std::array<uint64_t, 1>{3}));
  ExpectSound(*store);
}

TEST_F(FullDiskTest, SaveRemovesWhatIsDueAndContinues) {
  StoreOptions options = SmallBlocks();
  options.grace = std::chrono::milliseconds(500);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path_, OpenMode::kWrite, options));
  CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(4, 0, kLarge)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto deleted, store->Delete(std::array<uint64_t, 1>{4}));
  Fill(deleted.waiting_bytes / 2);
  std::this_thread::sleep_for(options.grace);
  CAIRN_EXPECT_OK(SaveSample(*store, MakeSample(4, 0, kLarge)));
  ExpectSound(*store);
}

// The disk is full in the segment, in the table and in the root in turn, if nothing is removed.
TEST_F(FullDiskTest, SmallSaveAndDeleteRemoveWhatIsDueAndContinue) {
  const SampleShape small{.tensor_count = 3, .largest_bytes = 20'000};
  StoreOptions options = SmallBlocks();
  for (uint64_t leave_bytes = 0; leave_bytes <= 80 << 10; leave_bytes += 8192) {
    SCOPED_TRACE(fmt::format("{} bytes left", leave_bytes));
    options.grace = std::chrono::hours(1);
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path_, OpenMode::kWrite, options));
    for (const uint64_t step : {4, 5}) CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(step)));
    CAIRN_ASSERT_OK(store->Delete(std::array<uint64_t, 1>{4}));
    Fill(leave_bytes);
    // As if the grace period had passed.
    internal::StoreAccess::StateOf(*store).options.grace = std::chrono::milliseconds(0);
    CAIRN_EXPECT_OK(SaveSample(*store, MakeSample(6, 0, small)));
    Steps expected = before_;
    for (const uint64_t step : {5, 6}) expected[step] = MakeSample(step);
    expected[6] = MakeSample(6, 0, small);
    ExpectSteps(path_, expected);
    ExpectSound(*store);
    Unfill();
    CAIRN_ASSERT_OK(store->Delete(std::array<uint64_t, 2>{5, 6}));
    ExpectNoLeftovers(path_);
    if (HasFailure()) return;
  }
}

TEST_F(FullDiskTest, ErrorNamesTheBytesThatWait) {
  StoreOptions options = SmallBlocks();
  options.grace = std::chrono::hours(1);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path_, OpenMode::kWrite, options));
  CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(4, 0, kLarge)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto deleted, store->Delete(std::array<uint64_t, 1>{4}));
  Fill(deleted.waiting_bytes / 2);
  EXPECT_THAT(SaveSample(*store, MakeSample(4, 0, kLarge)),
              IsError(ErrorCode::kResourceExhausted,
                      fmt::format("{} bytes of deleted steps wait", deleted.waiting_bytes)));
  ExpectAsBefore();
}

TEST_F(FullDiskTest, AFailedSaveRemovesNothingThatWaitsForReaders) {
  StoreOptions options = SmallBlocks();
  options.grace = std::chrono::hours(1);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path_, OpenMode::kWrite, options));
  auto& state = internal::StoreAccess::StateOf(*store);
  CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(4, 0, kLarge)));
  CAIRN_ASSERT_OK(store->Delete(std::array<uint64_t, 1>{4}));
  const uint64_t waiting_bytes = internal::WaitingBytes(state);
  for (const uint32_t world_size : {1, 2}) {
    CAIRN_ASSERT_OK_AND_ASSIGN(auto failed, store->Begin(5, {.world_size = world_size}));
    Fill(4096);
    failed.reset();
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto next, store->Begin(5, {.world_size = world_size}));
    EXPECT_EQ(internal::WaitingBytes(state), waiting_bytes);
    Unfill();
  }
}

TEST_F(FullDiskTest, RanksLearnOfErrorsForWhichThereIsNoSpace) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path_, OpenMode::kWrite, SmallBlocks()));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto other, JoinSession(path_, *store));
  const std::string attempt = store->NextAttempt(4);
  constexpr auto kNever = std::chrono::steady_clock::time_point::max();
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const auto writer,
      store->Begin(4, {.world_size = 2, .attempt = attempt, .deadline = kNever}));
  Fill(0);
  const Error error{.code = ErrorCode::kResourceExhausted, .message = "no space"};
  CAIRN_EXPECT_OK(other->FailAttempt(attempt, 1, error));
  OtherRanks others;
  EXPECT_THAT(writer->Gather(others),
              IsError(ErrorCode::kResourceExhausted, "rank 1: no space left on the device"));
  CAIRN_EXPECT_OK(store->FailAttempt(attempt, 0, error));
  const auto& storage = internal::StoreAccess::StateOf(*store).storage;
  const auto outcome = internal::FindOutcome(*storage, attempt);
  ASSERT_TRUE(outcome.has_value());
  EXPECT_TRUE(outcome->discarded);
  EXPECT_THAT(outcome->generation,
              IsError(ErrorCode::kResourceExhausted, "rank 0: no space left on the device"));
}

// Leaves more and more space, so that the disk is full in the segment, in the table, and in the
// root in turn.
TEST_F(FullDiskTest, DiskThatIsFullAnywhereInACommitLeavesTheStoreAsItWas) {
  const SampleShape small{.tensor_count = 3, .largest_bytes = 20'000};
  const Steps with_new = [&] {
    Steps steps = before_;
    steps[4] = MakeSample(4, 0, small);
    return steps;
  }();
  uint64_t exhausted = 0, saved = 0;
  for (uint64_t leave_bytes = 0; leave_bytes <= 80 << 10; leave_bytes += 4096) {
    SCOPED_TRACE(fmt::format("{} bytes left", leave_bytes));
    bool done = false;
    {
      CAIRN_ASSERT_OK_AND_ASSIGN(const auto store,
                                 Store::Open(path_, OpenMode::kWrite, SmallBlocks()));
      Fill(leave_bytes);
      const auto result = SaveSample(*store, MakeSample(4, 0, small));
      done = result.has_value();
      ++(done ? saved : exhausted);
      if (!done) {
        ASSERT_EQ(result.error().code, ErrorCode::kResourceExhausted) << result.error().ToString();
      }
      // Readers work on a full disk.
      ExpectSteps(path_, done ? with_new : before_);
    }
    Unfill();
    if (HasFailure()) return;
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store,
                               Store::Open(path_, OpenMode::kWrite, SmallBlocks()));
    ExpectNoLeftovers(path_);
    ExpectSound(*store);
    if (done) {
      CAIRN_EXPECT_OK(store->Delete(std::array<uint64_t, 1>{4}));
    }
    ExpectAsBefore();
  }
  fmt::print("{} saves refused for want of space, {} done\n", exhausted, saved);
  EXPECT_GT(exhausted, 0u);
  EXPECT_GT(saved, 0u);
}

// --- each write of a commit

/// A store with a step that was deleted and whose grace period has passed.
class FullAtTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto history = MakeHistory(path_);
    ASSERT_TRUE(IsOk(history));
    steps_ = *history;
    StoreOptions options = SmallBlocks();
    options.grace = std::chrono::hours(1);
    CAIRN_ASSERT_OK_AND_ASSIGN(store_, Store::Open(path_, OpenMode::kWrite, options));
    CAIRN_ASSERT_OK(SaveSample(*store_, MakeSample(4)));
    CAIRN_ASSERT_OK(store_->Delete(std::array<uint64_t, 1>{4}));
  }
  void EndGracePeriod() {
    internal::StoreAccess::StateOf(*store_).options.grace = std::chrono::milliseconds(0);
  }
  /// The disk is full at the point until a segment is removed.
  static cairn::testing::FaultAction FullUntilRemoved() {
    return [is_full = true](const cairn::testing::FaultPass& pass, uint32_t) mutable {
      is_full = is_full && pass.point != "segments.remove";
      return is_full && pass.point == GetParam() ? ENOSPC : 0;
    };
  }
  Result<StepInfo> Save() { return SaveSample(*store_, MakeSample(5, 0, kSmall)); }

  static constexpr SampleShape kSmall{.tensor_count = 3, .largest_bytes = 20'000};
  ScopedTempDir dir_;
  const std::string path_ = dir_ / "store";
  Steps steps_;
  std::unique_ptr<Store> store_;
};

TEST_P(FullAtTest, SaveRemovesWhatIsDueAndContinues) {
  EndGracePeriod();
  {
    const ScopedFaults faults(FullUntilRemoved());
    CAIRN_EXPECT_OK(Save());
    EXPECT_TRUE(faults.fired());
  }
  steps_[5] = MakeSample(5, 0, kSmall);
  ExpectSteps(path_, steps_);
  ExpectSound(*store_);
  ExpectNoLeftovers(path_);
}

TEST_P(FullAtTest, SaveFailsIfNothingIsDueAndNamesWhatWaits) {
  {
    const ScopedFaults faults(FullUntilRemoved());
    EXPECT_THAT(Save(), IsError(ErrorCode::kResourceExhausted, "bytes of deleted steps wait"));
  }
  ExpectSteps(path_, steps_);
  CAIRN_EXPECT_OK(Save());
}

INSTANTIATE_TEST_SUITE_P(Writes, FullAtTest,
                         ::testing::Values("segment.create", "segment.write", "tables.create",
                                           "tables.write", "roots.create", "roots.write"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

// --- permission

class PermissionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
    ASSERT_EQ(::chmod(dir_.path().c_str(), 0755), 0);
    ASSERT_TRUE(IsOk(MakeHistory(path_)));
  }

  std::string OpenAsNobody(const std::string& mode) {
    Child child({CAIRN_STORE_PROGRAM, "open-as", "65534", path_, mode});
    return child.ReadLine().value_or("nothing said");
  }
  void ExpectDenied(const std::string& mode) {
    EXPECT_THAT(OpenAsNobody(mode), AllOf(HasSubstr("error Unavailable"),
                                          HasSubstr("ermission denied"), HasSubstr(path_)));
  }

  ScopedTempDir dir_;
  const std::string path_ = dir_ / "store";
};

TEST_F(PermissionTest, StoreOfAnotherUserIsReadButNotWritten) {
  EXPECT_EQ(OpenAsNobody("r"), "ok");
  ExpectDenied("w");
}

TEST_F(PermissionTest, UnreadableDirectoryIsPermissionDenied) {
  ASSERT_EQ(::chmod(path_.c_str(), 0700), 0);
  for (const char* mode : {"r", "w"}) ExpectDenied(mode);
}

TEST_F(PermissionTest, UnreadableRootsArePermissionDenied) {
  ASSERT_EQ(::chmod((path_ + "/roots").c_str(), 0700), 0);
  ExpectDenied("r");
}

}  // namespace
}  // namespace cairn::kv
