// Goal: a process that dies at any named point of a commit, overwrite, delete or store creation
// leaves the old or the new state and nothing else. Readers see that state at once, and the next
// writer cleans up. Both remain true if the process dies again during the cleanup.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>

#include "kv/options.h"
#include "kv/step_info.h"
#include "kv/store.h"
#include "tests/fault/operations.h"
#include "tests/process/child.h"
#include "tests/support/fault_hook.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::kv {
namespace {

using cairn::testing::Child;
using cairn::testing::FaultPass;
using cairn::testing::IsOk;
using cairn::testing::NoFault;
using cairn::testing::ScopedFaults;
using cairn::testing::ScopedTempDir;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::IsEmpty;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

void CopyStore(const std::string& from, const std::string& to) {
  std::filesystem::remove_all(to);
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
}

int RunStoreProgram(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), CAIRN_STORE_PROGRAM);
  Child child(arguments);
  return child.Wait();
}

/// Opens for writing and checks that the store has one of the two states, bit for bit, has no
/// leftovers, and is usable.
void ExpectOldOrNew(const std::string& path, const Steps& before, const Steps& after) {
  {
    // A reader opens the store first, before a writer has cleaned up.
    const auto read = LoadAll(path);
    ASSERT_TRUE(IsOk(read));
    EXPECT_TRUE(*read == before || *read == after);
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store,
                               Store::Open(path, OpenMode::kWrite, SmallBlocks()));
    EXPECT_THAT(store->recovery_notes(), IsEmpty());
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->Latest());
    Steps found;
    for (const StepInfo& info : snapshot->steps()) {
      CAIRN_ASSERT_OK_AND_ASSIGN(found[info.step], LoadSample(*snapshot, info.step));
    }
    EXPECT_TRUE(found == *read) << "the writer sees other steps than the reader before it";
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto damage, Verify(*snapshot));
    EXPECT_THAT(damage, IsEmpty());
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto leftovers, FindLeftovers(path));
    EXPECT_THAT(leftovers, IsEmpty());
    CAIRN_EXPECT_OK(SaveSample(*store, MakeSample(50)));
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path, OpenMode::kRead));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const SampleStep saved, LoadSample(*snapshot));
  EXPECT_TRUE(saved == MakeSample(50));
}

class CrashTest : public ::testing::TestWithParam<Operation> {
 protected:
  // SIGKILL loses nothing that was written, synced or not, so tmpfs is as good as a disk here.
  ScopedTempDir dir_{std::filesystem::exists("/dev/shm") ? "/dev/shm" : ""};
};

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
  uint32_t crashes = 0, recovery_crashes = 0;
  for (const FaultPass& pass : passes) {
    SCOPED_TRACE(
        fmt::format("{} killed at {} #{}", OperationName(operation), pass.point, pass.occurrence));
    CopyStore(dir_ / "history", dir_ / "crashed");
    const int killed = RunStoreProgram({"operate", dir_ / "crashed", OperationName(operation),
                                        pass.point, std::to_string(pass.occurrence)});
    ASSERT_EQ(killed, -SIGKILL);
    ++crashes;
    // Crash again, now at the n-th point of the cleanup by the next writer.
    for (int n = 1;; ++n) {
      SCOPED_TRACE(fmt::format("opened again and killed at its point {}", n));
      CopyStore(dir_ / "crashed", dir_ / "crashed-twice");
      const int status = RunStoreProgram({"open", dir_ / "crashed-twice", std::to_string(n)});
      ASSERT_THAT(status, AnyOf(0, -SIGKILL));
      if (status == 0) break;
      ++recovery_crashes;
      ExpectOldOrNew(dir_ / "crashed-twice", before, after);
      if (HasFailure()) return;
    }
    ExpectOldOrNew(dir_ / "crashed", before, after);
    if (HasFailure()) return;
  }
  fmt::print("{}: {} crashes, {} more in the recovery after them\n", OperationName(operation),
             crashes, recovery_crashes);
}

INSTANTIATE_TEST_SUITE_P(Every, CrashTest, ::testing::ValuesIn(kOperations), [](const auto& info) {
  std::string name = OperationName(info.param);
  std::erase(name, '-');
  return name;
});

TEST(CrashPointTest, EveryPointInTheHeaderIsPassed) {
  ScopedTempDir dir;
  std::vector<std::string> seen;
  {
    ScopedFaults faults(NoFault());
    CAIRN_ASSERT_OK(MakeHistory(dir / "store"));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(dir / "store", OpenMode::kWrite));
    CAIRN_ASSERT_OK(Perform(Operation::kDeleteMany, *store));
    CAIRN_ASSERT_OK(LoadAll(dir / "store"));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->Latest());
    CAIRN_ASSERT_OK(Verify(*snapshot));
    for (const FaultPass& pass : faults.passes()) seen.push_back(pass.point);
  }
  for (const char* point : {"segment.create",
                            "segment.write",
                            "segment.seal",
                            "segment.sync",
                            "segment.directory_sync",
                            "manifest.create",
                            "manifest.write",
                            "manifest.sync",
                            "manifest.directory_sync",
                            "index.write",
                            "index.flush",
                            "index.flushed",
                            "commit.rename",
                            "commit.directory_sync",
                            "commit.done",
                            "delete.rename",
                            "delete.directory_sync",
                            "delete.unlink",
                            "segment.open",
                            "segment.read",
                            "manifest.open",
                            "index.open",
                            "file.open"}) {
    EXPECT_THAT(seen, Contains(point));
  }
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
