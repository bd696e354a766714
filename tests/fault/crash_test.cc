// Goal: a process that dies at any named point of a commit, overwrite, delete, store creation or
// open for writing leaves the old or the new state and nothing else. Readers see that state at
// once, and the next writer cleans up. Both remain true if the process dies again during the
// cleanup.
//
// With CAIRN_CRASH_ALL the recovery of every crash is interrupted.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "kv/base/options.h"
#include "kv/read/snapshot.h"
#include "kv/store.h"
#include "tests/fault/crash_checks.h"
#include "tests/support/fault_hook.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::kv {
namespace {

using cairn::testing::FaultPass;
using cairn::testing::NoFault;
using cairn::testing::ScopedFaults;
using cairn::testing::ScopedTempDir;
using ::testing::AnyOf;
using ::testing::ContainerEq;
using ::testing::SizeIs;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

void CopyStore(const std::string& from, const std::string& to) {
  std::filesystem::remove_all(to);
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
}

/// Reads change nothing, so a process that dies there leaves what the point before leaves.
bool IsRead(const std::string& point) {
  return point.ends_with(".open") || point.ends_with(".read");
}

/// Describes the files of a store up to random ids. Crashes that leave the same description need
/// only one test of the recovery.
std::string ShapeOf(const std::string& path) {
  static const std::regex id("[0-9a-f]{16}");
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    std::string name = std::filesystem::relative(entry.path(), path);
    // The number of a root is part of the state.
    if (!name.ends_with(".root")) name = std::regex_replace(name, id, "*");
    files.push_back(fmt::format("{} {}", name, entry.is_regular_file() ? entry.file_size() : 0));
  }
  std::ranges::sort(files);
  return fmt::format("{}", fmt::join(files, "\n"));
}

class CrashDirectory : public ::testing::Test {
 protected:
  /// Opens a copy of `crashed` for writing and kills the process at the n-th point, for each n.
  /// Returns the number of crashes.
  uint32_t KillRecovery(const std::string& crashed, const Steps& before, const Steps& after) {
    for (int n = 1;; ++n) {
      SCOPED_TRACE(fmt::format("opened again and killed at its point {}", n));
      CopyStore(crashed, dir_ / "crashed-twice");
      const int status = RunStoreProgram({"open", dir_ / "crashed-twice", std::to_string(n)});
      EXPECT_THAT(status, AnyOf(0, -SIGKILL));
      if (status != -SIGKILL) return n - 1;
      // Crashes that leave a state that was tested need no other test.
      if (!tested_.insert(ShapeOf(dir_ / "crashed-twice")).second) continue;
      ExpectOldOrNew(dir_ / "crashed-twice", before, after);
      if (HasFailure()) return n;
    }
  }

  // SIGKILL loses nothing that was written, synced or not, so tmpfs is as good as a disk here.
  ScopedTempDir dir_{std::filesystem::exists("/dev/shm") ? "/dev/shm" : ""};
  std::set<std::string> tested_;
};

/// Several ranks pass many points whose recovery is the same. Kills every n-th recovery of theirs.
uint32_t RecoveryStride(Operation operation) {
  return operation == Operation::kRanks && std::getenv("CAIRN_CRASH_ALL") == nullptr ? 6 : 1;
}

class CrashTest : public CrashDirectory, public ::testing::WithParamInterface<Operation> {};

TEST_P(CrashTest, LeavesOldOrNewStateAtEveryNamedPoint) {
  const Operation operation = GetParam();
  CAIRN_ASSERT_OK_AND_ASSIGN(const Steps before, MakeHistory(dir_ / "history"));
  const Steps after = After(operation, before);
  std::vector<FaultPass> passes;
  CopyStore(dir_ / "history", dir_ / "rehearsal");
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store,
                               Store::Open(dir_ / "rehearsal", OpenMode::kWrite, SmallBlocks()));
    ScopedFaults faults(NoFault());
    CAIRN_ASSERT_OK(Perform(operation, *store));
    passes = faults.passes();
  }
  uint32_t crashes = 0, recoveries = 0, recovery_crashes = 0;
  for (const FaultPass& pass : passes) {
    if (IsRead(pass.point)) continue;
    SCOPED_TRACE(
        fmt::format("{} killed at {} #{}", OperationName(operation), pass.point, pass.occurrence));
    CopyStore(dir_ / "history", dir_ / "crashed");
    const int killed = RunStoreProgram({"operate", dir_ / "crashed", OperationName(operation),
                                        pass.point, std::to_string(pass.occurrence)});
    ASSERT_EQ(killed, -SIGKILL);
    ++crashes;
    if (crashes % RecoveryStride(operation) == 0 &&
        tested_.insert(ShapeOf(dir_ / "crashed")).second) {
      ++recoveries;
      recovery_crashes += KillRecovery(dir_ / "crashed", before, after);
      if (HasFailure()) return;
    }
    ExpectOldOrNew(dir_ / "crashed", before, after);
    if (HasFailure()) return;
  }
  EXPECT_GT(crashes, 8u);
  fmt::print("{}: {} crashes, {} more in {} recoveries after them\n", OperationName(operation),
             crashes, recovery_crashes, recoveries);
}

INSTANTIATE_TEST_SUITE_P(Every, CrashTest, ::testing::ValuesIn(kOperations), kOperationTestName);

// An open for writing that has all kinds of objects to remove.
TEST_F(CrashDirectory, SweepLeavesEveryStepAtEveryNamedPoint) {
  const std::string path = dir_ / "history";
  CAIRN_ASSERT_OK_AND_ASSIGN(const Steps before, MakeHistory(path));
  constexpr const char* kGarbage[] = {"segments/00000001-0123456789abcdef.seg",
                                      "tables/00000001-0123456789abcdef.sst",
                                      "pages/00000001-0123456789abcdef.steps",
                                      "pending/0000000100000000-7-0/1.part",
                                      "pending/0000000100000000-7-0/failed",
                                      "leases/0000000100000000",
                                      "tables/.0123456789abcdef.tmp",
                                      "roots/.0123456789abcdef.tmp",
                                      ".0123456789abcdef.tmp"};
  for (const char* name : kGarbage) {
    const std::filesystem::path file = std::filesystem::path(path) / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << "garbage";
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto planted, FindLeftovers(path));
  EXPECT_THAT(planted, SizeIs(5));
  EXPECT_GT(KillRecovery(path, before, before), 15u);
  ExpectOldOrNew(path, before, before);
}

/// Passes all points once: commits of one rank and of many, so many that there are pages and
/// hints, and reads.
Result<void> PassEveryPoint(const std::string& path) {
  CAIRN_TRY(MakeHistory(path));
  CAIRN_TRY_ASSIGN(const auto store, Store::Open(path, OpenMode::kWrite, SmallBlocks()));
  CAIRN_TRY(Perform(Operation::kRanks, *store));
  CAIRN_TRY(Perform(Operation::kDeleteMany, *store));
  for (uint64_t step = 10; step < 80; ++step) {
    CAIRN_TRY(SaveSample(*store, MakeSample(step, 0, {.tensor_count = 1, .largest_bytes = 1})));
  }
  CAIRN_TRY(store->Close());
  CAIRN_TRY(Store::Open(path, OpenMode::kWrite, SmallBlocks()));
  CAIRN_TRY(LoadAll(path));
  return {};
}

TEST(CrashPointTest, EveryPointInTheHeaderIsPassedAndNoOther) {
  ScopedTempDir dir(std::filesystem::exists("/dev/shm") ? "/dev/shm" : "");
  std::set<std::string> seen;
  {
    ScopedFaults faults(NoFault());
    CAIRN_ASSERT_OK(PassEveryPoint(dir / "store"));
    for (const FaultPass& pass : faults.passes()) seen.insert(pass.point);
  }
  std::set<std::string> documented;
  std::ifstream header(CAIRN_FAULT_POINT_HEADER);
  for (std::string line; std::getline(header, line);) {
    if (!line.starts_with("///   ")) continue;
    std::istringstream words(line.substr(6));
    for (std::string word; words >> word;) documented.insert(word);
  }
  EXPECT_THAT(documented, ContainerEq(seen));
}

TEST(CreationCrashTest, InterruptedCreationIsStartedAgain) {
  ScopedTempDir dir;
  std::vector<FaultPass> passes;
  {
    ScopedFaults faults(NoFault());
    CAIRN_ASSERT_OK(Store::Open(dir / "rehearsal", OpenMode::kWrite, SmallBlocks()));
    passes = faults.passes();
  }
  ASSERT_GT(passes.size(), 3u);
  for (const FaultPass& pass : passes) {
    SCOPED_TRACE(fmt::format("creation killed at {} #{}", pass.point, pass.occurrence));
    const std::string path = dir / "store";
    std::filesystem::remove_all(path);
    ASSERT_EQ(
        RunStoreProgram({"operate", path, "create", pass.point, std::to_string(pass.occurrence)}),
        -SIGKILL);
    // A reader sees an empty store or none, and never a damaged one.
    const auto reader = Store::Open(path, OpenMode::kRead);
    if (!reader) {
      EXPECT_THAT(reader.error().code, AnyOf(ErrorCode::kNotFound, ErrorCode::kInvalidArgument))
          << reader.error().ToString();
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store,
                               Store::Open(path, OpenMode::kWrite, SmallBlocks()));
    CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(1)));
    CAIRN_ASSERT_OK_AND_ASSIGN(const Steps steps, LoadAll(path));
    EXPECT_TRUE(steps.at(1) == MakeSample(1));
  }
}

}  // namespace
}  // namespace cairn::kv
