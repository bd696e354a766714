// Goal: a copy that fails or dies at any operation on its target leaves the target with complete
// steps only, and is completed by the next one.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "kv/read/snapshot.h"
#include "tests/kv/copy/copy_stores.h"
#include "tests/kv/store_checks.h"
#include "tests/support/fault_hook.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::kv {
namespace {

using cairn::testing::FailNth;
using cairn::testing::FaultPass;
using cairn::testing::IsOk;
using cairn::testing::NoFault;
using cairn::testing::ScopedFaults;
using cairn::testing::ScopedTempDir;
using internal::CanHappen;
using internal::DirectoryStorage;
using internal::FaultAt;
using internal::FaultyStorage;
using internal::MemoryStorage;
using internal::StorageFault;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

constexpr SampleShape kShape{.tensor_count = 4, .largest_bytes = 170'000};

/// The copy under test: one thread, so that its operations have an order, and an announcement after
/// each segment.
CopyOptions TestedCopy() {
  return {.steps = {2, 3}, .threads = 1, .keep_interval = std::chrono::milliseconds(0)};
}

SampleStep Sample(uint64_t step) { return MakeSample(step, 0, kShape); }

/// Checks that the target has step 1 and complete copies of a part of steps 2 and 3.
void ExpectCompleteSteps(const std::shared_ptr<Storage>& target) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const Steps found, LoadSteps(target));
  EXPECT_TRUE(found.contains(1));
  for (const auto& [step, sample] : found) EXPECT_TRUE(sample == Sample(step)) << step;
  ExpectSound(target);
}

/// Copies without faults, and checks that the target then has all steps and nothing else.
void ExpectCopyCompletes(const std::shared_ptr<Storage>& source,
                         const std::shared_ptr<Storage>& target) {
  CAIRN_ASSERT_OK(OpenAndCopy(source, target, TestedCopy()));
  // The next open for writing removes what earlier ones left.
  CAIRN_ASSERT_OK(OpenCopyStore(target, OpenMode::kWrite));
  ExpectSteps(target, Steps{{1, Sample(1)}, {2, Sample(2)}, {3, Sample(3)}});
  ExpectSound(target);
}

// --- faults of a storage

class CopyFaultTest : public ::testing::TestWithParam<StorageFault> {
 protected:
  void SetUp() override { CAIRN_ASSERT_OK(SaveThreeSteps(source_, kShape)); }

  /// Returns a target with step 1.
  std::shared_ptr<MemoryStorage> NewTarget() {
    auto target = std::make_shared<MemoryStorage>("target");
    EXPECT_TRUE(IsOk(OpenAndCopy(source_, target, {.steps = {1}})));
    return target;
  }

  const std::shared_ptr<Storage> source_ = std::make_shared<MemoryStorage>("source");
};

/// With faults after which the storage works again.
class CopyAgainTest : public CopyFaultTest {};

INSTANTIATE_TEST_SUITE_P(Faults, CopyAgainTest,
                         ::testing::Values(StorageFault::kRefuse, StorageFault::kLoseResponse,
                                           StorageFault::kTear));
INSTANTIATE_TEST_SUITE_P(Faults, CopyFaultTest,
                         ::testing::Values(StorageFault::kRefuse, StorageFault::kLoseResponse,
                                           StorageFault::kLoseWrite, StorageFault::kConflict,
                                           StorageFault::kTear, StorageFault::kPowerCut));

TEST_P(CopyFaultTest, EveryCallOfTheTargetMayFail) {
  const auto trial = std::make_shared<FaultyStorage>(NewTarget());
  CAIRN_ASSERT_OK(OpenAndCopy(source_, trial, TestedCopy()));
  int failed_count = 0;
  for (const auto& call : trial->Log()) {
    if (!CanHappen(GetParam(), call.operation)) continue;
    SCOPED_TRACE(
        fmt::format("call {}: {} {}", call.index, StorageOperationName(call.operation), call.name));
    const auto base = NewTarget();
    const auto faulty = std::make_shared<FaultyStorage>(base);
    faulty->SetPlan(FaultAt(call.index, GetParam()));
    const auto copied = OpenAndCopy(source_, faulty, TestedCopy());
    if (!copied) ++failed_count;
    ExpectCompleteSteps(base);
    if (copied) {
      CAIRN_ASSERT_OK_AND_ASSIGN(const Steps found, LoadSteps(base));
      EXPECT_EQ(found.size(), 3) << "the copy was acknowledged";
    }
    ExpectCopyCompletes(source_, base);
    if (HasFailure()) return;
  }
  EXPECT_GE(failed_count, GetParam() == StorageFault::kConflict ? 0 : 4);
}

TEST_P(CopyAgainTest, FailedCopyIsRepeatedByTheSameStore) {
  const auto trial = std::make_shared<FaultyStorage>(NewTarget());
  CAIRN_ASSERT_OK(OpenAndCopy(source_, trial, TestedCopy()));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto from, OpenCopyStore(source_, OpenMode::kRead));
  for (const auto& call : trial->Log()) {
    if (!CanHappen(GetParam(), call.operation)) continue;
    SCOPED_TRACE(
        fmt::format("call {}: {} {}", call.index, StorageOperationName(call.operation), call.name));
    const auto base = NewTarget();
    const auto faulty = std::make_shared<FaultyStorage>(base);
    faulty->SetPlan(FaultAt(call.index, GetParam()));
    const auto to = OpenCopyStore(faulty, OpenMode::kWrite);
    if (!to) continue;
    if (CopySteps(*from, **to, TestedCopy())) continue;
    const auto repeated = CopySteps(*from, **to, TestedCopy());
    // If it is unknown whether a commit has happened, only the next open finds out.
    const bool must_reopen =
        !repeated && repeated.error().message.find("it is unknown whether") != std::string::npos;
    EXPECT_TRUE(must_reopen || IsOk(repeated));
    CAIRN_ASSERT_OK((*to)->Close());
    ExpectCopyCompletes(source_, base);
    if (HasFailure()) return;
  }
}

// --- failures and deaths at the points of a directory

class CopyDirectoryFaultTest : public ::testing::Test {
 protected:
  void SetUp() override {
    CAIRN_ASSERT_OK(SaveThreeSteps(source_, kShape));
    CAIRN_ASSERT_OK(OpenAndCopy(source_, Target(original_), {.steps = {1}}));
  }
  static std::shared_ptr<Storage> Target(const std::string& path) {
    return std::make_shared<DirectoryStorage>(path);
  }
  /// Makes target_ a copy of the original target.
  void Reset() {
    std::filesystem::remove_all(target_);
    std::filesystem::copy(original_, target_, std::filesystem::copy_options::recursive);
  }

  ScopedTempDir dir_{std::filesystem::exists("/dev/shm") ? "/dev/shm" : ""};
  const std::string original_ = dir_ / "original";
  const std::string target_ = dir_ / "target";
  const std::shared_ptr<Storage> source_ = std::make_shared<DirectoryStorage>(dir_ / "source");
};

TEST_F(CopyDirectoryFaultTest, EveryFileOperationMayFail) {
  uint32_t n = 1;
  for (;; ++n) {
    Reset();
    std::string point;
    {
      ScopedFaults faults(FailNth(n, EIO));
      const auto copied = OpenAndCopy(source_, Target(target_), TestedCopy());
      if (!faults.fired()) break;
      point = faults.fired_at();
    }
    SCOPED_TRACE(fmt::format("point {}: {}", n, point));
    ExpectCompleteSteps(Target(target_));
    ExpectCopyCompletes(source_, Target(target_));
    if (HasFailure()) return;
  }
  EXPECT_GT(n, 50) << "the copy passed too few points";
}

TEST_F(CopyDirectoryFaultTest, ProcessMayDieAnywhere) {
  bool died = true;
  uint32_t n = 1;
  for (; died; ++n) {
    Reset();
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ScopedFaults faults([n](const FaultPass&, uint32_t total) {
        if (total == n) ::kill(::getpid(), SIGKILL);
        return 0;
      });
      ::_exit(OpenAndCopy(source_, Target(target_), TestedCopy()) ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    died = WIFSIGNALED(status);
    ASSERT_TRUE(died || WEXITSTATUS(status) == 0);
    SCOPED_TRACE(fmt::format("killed at point {}", n));
    ExpectCompleteSteps(Target(target_));
    ExpectCopyCompletes(source_, Target(target_));
    if (HasFailure()) return;
  }
  EXPECT_GT(n, 50) << "the copy passed too few points";
}

}  // namespace
}  // namespace cairn::kv
