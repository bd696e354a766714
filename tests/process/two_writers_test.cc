// Goal: one process at a time writes. The second is refused at once, and the error names the first.
// A writer that was paused while another took the store over changes nothing.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "kv/base/options.h"
#include "kv/read/snapshot.h"
#include "kv/store.h"
#include "tests/fault/operations.h"
#include "tests/kv/store_checks.h"
#include "tests/process/child.h"
#include "tests/support/fault_hook.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"
#include "tests/support/store_address.h"

namespace cairn::kv {
namespace {

using cairn::testing::Child;
using cairn::testing::FaultPass;
using cairn::testing::IsError;
using cairn::testing::IsOk;
using cairn::testing::NoFault;
using cairn::testing::ScopedFaults;
using cairn::testing::ScopedTempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Optional;
using ::testing::StartsWith;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

TEST(TwoWritersTest, SecondGetsConflictAndTheErrorNamesTheHolder) {
  ScopedTempDir dir;
  const std::string path = cairn::testing::NewStoreAddress(dir, "store");
  Child holder({CAIRN_STORE_PROGRAM, "hold", path});
  ASSERT_EQ(holder.ReadLine(), "ready");
  EXPECT_THAT(Store::Open(path, OpenMode::kWrite),
              IsError(ErrorCode::kConflict, "process " + std::to_string(holder.pid())));
  CAIRN_EXPECT_OK(Store::Open(path, OpenMode::kRead));
  holder.CloseInput();
  EXPECT_EQ(holder.Wait(), 0);
  CAIRN_EXPECT_OK(Store::Open(path, OpenMode::kWrite));
}

TEST(TwoWritersTest, SecondInTheSameProcessGetsConflictByAnyNameOfTheStore) {
  ScopedTempDir dir;
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(dir / "store", OpenMode::kWrite));
  std::filesystem::create_directory_symlink(dir / "store", dir / "link");
  for (const char* name : {"store", "./store/", "link"}) {  // format 1 compared paths
    EXPECT_THAT(Store::Open(dir / name, OpenMode::kWrite),
                IsError(ErrorCode::kConflict, "this process"))
        << name;
  }
  // The failed attempts must not have released the lease.
  Child other({CAIRN_STORE_PROGRAM, "hold", dir / "store"});
  const auto answer = other.ReadLine();
  ASSERT_TRUE(answer);
  EXPECT_THAT(*answer, StartsWith("error Conflict"));
}

TEST(TwoWritersTest, SecondInTheSameProcessGetsConflictThroughABindMount) {
  ScopedTempDir dir;
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(dir / "store", OpenMode::kWrite));
  CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(1)));
  std::filesystem::create_directory(dir / "mount");
  // A namespace of mounts that ends with this process.
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount((dir / "store").c_str(), (dir / "mount").c_str(), nullptr, MS_BIND, nullptr) != 0) {
    GTEST_SKIP() << "this process may not mount: " << std::strerror(errno);
  }
  EXPECT_THAT(Store::Open(dir / "mount", OpenMode::kWrite),
              IsError(ErrorCode::kConflict, "this process"));
  CAIRN_EXPECT_OK(SaveSample(*store, MakeSample(2)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Steps steps, LoadAll(dir / "mount"));
  EXPECT_EQ(steps.size(), 2u);
  ::umount((dir / "mount").c_str());
}

TEST(TwoWritersTest, ClosedDescriptorsOfTheProcessDoNotReleaseTheStore) {
  ScopedTempDir dir;
  const std::string path = dir / "store";
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path, OpenMode::kWrite));
  // Format 1 lost its lock when the process closed any descriptor of the lock file.
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) std::ifstream(entry.path()).get();
  }
  Child other({CAIRN_STORE_PROGRAM, "hold", path});
  EXPECT_THAT(other.ReadLine(), Optional(StartsWith("error Conflict")));
}

TEST(TwoWritersTest, ForkedChildOfAClosedStoreDoesNotKeepIt) {
  ScopedTempDir dir;
  const std::string path = cairn::testing::NewStoreAddress(dir, "store");
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path, OpenMode::kWrite));
  const pid_t data_loader = ::fork();
  if (data_loader == 0) {
    ::pause();  // holds a copy of every descriptor
    ::_exit(0);
  }
  CAIRN_EXPECT_OK(store->Close());
  Child other({CAIRN_STORE_PROGRAM, "hold", path});
  EXPECT_EQ(other.ReadLine(), "ready");
  ::kill(data_loader, SIGKILL);
  int status = 0;
  ::waitpid(data_loader, &status, 0);
}

TEST(TwoWritersTest, EndOfAForkedChildLeavesTheParentsStore) {
  ScopedTempDir dir;
  const std::string path = cairn::testing::NewStoreAddress(dir, "store");
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path, OpenMode::kWrite));
  const pid_t child = ::fork();
  if (child == 0) {
    ::close_range(3, ~0u, 0);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  Child other({CAIRN_STORE_PROGRAM, "hold", path});
  EXPECT_THAT(other.ReadLine(), Optional(StartsWith("error Conflict")));
}

TEST(ForkTest, ChildWritesItsOwnStoreAndCannotUseTheInheritedOne) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer allows no threads in a forked child";
#endif
  ScopedTempDir dir;
  const std::string path = cairn::testing::NewStoreAddress(dir, "store");
  Child program({CAIRN_STORE_PROGRAM, "fork", path, dir / "other"});
  EXPECT_THAT(program.ReadLines(), ElementsAre("ok"));
  EXPECT_EQ(program.Wait(), 0);
  CAIRN_ASSERT_OK_AND_ASSIGN(const Steps steps, LoadAll(path));
  EXPECT_TRUE((steps == Steps{{1, MakeSample(1)}, {2, MakeSample(2)}}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Steps others, LoadAll(dir / "other"));
  EXPECT_TRUE((others == Steps{{1, MakeSample(1)}}));
}

// --- a writer that is paused while another one takes the store over

class PausedWriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto history = MakeHistory(dir_ / "history");
    ASSERT_TRUE(IsOk(history));
    before_ = *history;
    std::filesystem::copy(dir_ / "history", dir_ / "rehearsal",
                          std::filesystem::copy_options::recursive);
    const auto store = Store::Open(dir_ / "rehearsal", OpenMode::kWrite, SmallBlocks());
    ASSERT_TRUE(IsOk(store));
    ScopedFaults faults(NoFault());
    ASSERT_TRUE(IsOk(Perform(Operation::kCommit, **store)));
    points_ = faults.passes();
  }

  /// Pauses a commit of step 4 at `pass`, calls `others` with the store, which it has taken over,
  /// and resumes the commit. Returns what the paused writer said.
  std::vector<std::string> PauseAt(const FaultPass& pass,
                                   const std::function<void(Store&, Steps&)>& others,
                                   Steps& expected) {
    const std::string path = dir_ / "store";
    std::filesystem::remove_all(path);
    std::filesystem::copy(dir_ / "history", path, std::filesystem::copy_options::recursive);
    Child paused({CAIRN_STORE_PROGRAM, "pause", path, std::to_string(pass.occurrence), pass.point});
    EXPECT_TRUE(paused.AwaitStop());
    EXPECT_THAT(Store::Open(path, OpenMode::kWrite, SmallBlocks()),
                IsError(ErrorCode::kConflict, std::to_string(paused.pid())));
    StoreOptions options = SmallBlocks();
    options.take_over = true;
    auto store = Store::Open(path, OpenMode::kWrite, options);
    EXPECT_TRUE(IsOk(store));
    if (!store) return {};
    auto loaded = LoadAllFrom(**store);
    EXPECT_TRUE(IsOk(loaded));
    if (!loaded) return {};
    expected = *std::move(loaded);
    others(**store, expected);
    paused.Continue();
    auto lines = paused.ReadLines();
    (void)paused.Wait();
    // The paused writer has changed nothing, and the new one continues.
    const auto now = LoadAll(path);
    EXPECT_TRUE(IsOk(now) && *now == expected);
    EXPECT_TRUE(IsOk(SaveSample(**store, MakeSample(20))));
    expected[20] = MakeSample(20);
    EXPECT_TRUE(IsOk((*store)->Close()));
    ExpectWholeAndClean(path, expected, SmallBlocks());
    return lines;
  }

  ScopedTempDir dir_{cairn::testing::FastDirectory()};
  Steps before_;
  std::vector<FaultPass> points_;
};

TEST_F(PausedWriterTest, GetsConflictAndChangesNothingAtEveryNamedPoint) {
  uint32_t conflicts = 0, committed = 0;
  for (const FaultPass& pass : points_) {
    // The others have no grace period here, so what the commit would read may be gone.
    if (pass.point.ends_with(".open") || pass.point.ends_with(".read")) continue;
    SCOPED_TRACE(fmt::format("paused at {} #{}", pass.point, pass.occurrence));
    Steps expected;
    bool was_committed = false;
    const auto lines = PauseAt(
        pass,
        [&](Store& store, Steps& steps) {
          // The commit point is the link of the root.
          was_committed = steps.contains(4);
          CAIRN_EXPECT_OK(store.Delete(std::array<uint64_t, 1>{3}));
          CAIRN_EXPECT_OK(SaveSample(store, MakeSample(10)));
          steps.erase(3);
          steps[10] = MakeSample(10);
        },
        expected);
    ASSERT_EQ(lines.size(), 2u);
    if (was_committed) {
      EXPECT_EQ(lines[0], "commit ok");
      ++committed;
    } else {
      EXPECT_THAT(lines[0], StartsWith("commit Conflict"));
      EXPECT_THAT(lines[0], HasSubstr(fmt::format("process {}", ::getpid())));
      ++conflicts;
    }
    EXPECT_THAT(lines[1], StartsWith("delete Conflict"));
    if (HasFailure()) return;
  }
  fmt::print("{} pauses before the commit, {} after it\n", conflicts, committed);
  EXPECT_GT(conflicts, 10u);
  EXPECT_GT(committed, 2u);
}

// The number of the paused writer's root is free again after so many commits.
TEST_F(PausedWriterTest, GetsConflictAfterOthersHaveRemovedItsRoots) {
  for (const char* point : {"roots.create", "roots.link", "roots.linked"}) {
    SCOPED_TRACE(point);
    Steps expected;
    const auto lines = PauseAt(
        {.point = point, .occurrence = 1},
        [&](Store& store, Steps& steps) {
          for (uint64_t i = 0; i < 70; ++i) {
            const SampleStep tiny = MakeSample(10, i, {.tensor_count = 1, .largest_bytes = 1});
            CAIRN_EXPECT_OK(SaveSample(store, tiny, /*overwrite=*/i > 0));
            steps[10] = tiny;
          }
        },
        expected);
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_THAT(lines[0], StartsWith("commit Conflict"));
    EXPECT_THAT(lines[1], Not(StartsWith("delete ok")));
  }
}

// The first one has put its root, and has not looked for its predecessor yet, when the second one
// puts the next.
TEST_F(PausedWriterTest, RootOfAnotherPausedWriterIsNoPredecessor) {
  const std::string path = dir_ / "history";
  Child first({CAIRN_STORE_PROGRAM, "pause", path, "1", "roots.link", "roots.linked"});
  ASSERT_TRUE(first.AwaitStop());
  Child second({CAIRN_STORE_PROGRAM, "pause", path, "1", "roots.link"});
  ASSERT_TRUE(second.AwaitStop());
  StoreOptions options = SmallBlocks();
  options.take_over = true;
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path, OpenMode::kWrite, options));
  CAIRN_ASSERT_OK_AND_ASSIGN(Steps expected, LoadAllFrom(*store));
  for (uint64_t i = 0; i < 70; ++i) {
    expected[10] = MakeSample(10, i, {.tensor_count = 1, .largest_bytes = 1});
    CAIRN_ASSERT_OK(SaveSample(*store, expected[10], /*overwrite=*/i > 0));
  }
  first.Continue();
  ASSERT_TRUE(first.AwaitStop());
  for (Child* const child : {&second, &first}) {
    child->Continue();
    const auto lines = child->ReadLines();
    (void)child->Wait();
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_THAT(lines[0], StartsWith("commit Conflict"));
    EXPECT_THAT(lines[1], Not(StartsWith("delete ok")));
  }
  CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(20)));
  expected[20] = MakeSample(20);
  CAIRN_ASSERT_OK(store->Close());
  ExpectWholeAndClean(path, expected, SmallBlocks());
}

}  // namespace
}  // namespace cairn::kv
