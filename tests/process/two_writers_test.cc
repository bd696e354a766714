// The writer's lock between processes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "kv/internal/io/lock_file.h"
#include "kv/options.h"
#include "kv/store.h"
#include "tests/process/child.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::kv {
namespace {

using cairn::testing::Child;
using cairn::testing::IsError;
using cairn::testing::ScopedTempDir;
using internal::LockFile;

TEST(TwoWritersTest, SecondGetsConflictAtOnceAndTheErrorNamesTheHolder) {
  ScopedTempDir dir;
  const std::string path = dir / "store";
  Child holder({CAIRN_STORE_PROGRAM, "hold", path});
  ASSERT_EQ(holder.ReadLine(), "ready");
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(Store::Open(path, OpenMode::kWrite),
              IsError(ErrorCode::kConflict, "process " + std::to_string(holder.pid())));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
  CAIRN_EXPECT_OK(Store::Open(path, OpenMode::kRead));
  holder.CloseInput();
  EXPECT_EQ(holder.Wait(), 0);
  CAIRN_EXPECT_OK(Store::Open(path, OpenMode::kWrite));
}

TEST(TwoWritersTest, KilledHolderDoesNotBlockOthers) {
  ScopedTempDir dir;
  const std::string path = dir / "store";
  Child holder({CAIRN_STORE_PROGRAM, "hold", path});
  ASSERT_EQ(holder.ReadLine(), "ready");
  holder.Kill();
  EXPECT_EQ(holder.Wait(), -SIGKILL);
  CAIRN_EXPECT_OK(Store::Open(path, OpenMode::kWrite));
}

TEST(TwoWritersTest, SecondInTheSameProcessGetsConflictByAnyNameOfTheStore) {
  ScopedTempDir dir;
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(dir / "store", OpenMode::kWrite));
  EXPECT_THAT(Store::Open(dir / "store", OpenMode::kWrite),
              IsError(ErrorCode::kConflict, "this process"));
  EXPECT_THAT(Store::Open(dir / "./store/", OpenMode::kWrite),
              IsError(ErrorCode::kConflict, "this process"));
  // The failed attempts must not have released the lock, as closing a descriptor of the file would.
  Child other({CAIRN_STORE_PROGRAM, "hold", dir / "store"});
  const auto answer = other.ReadLine();
  ASSERT_TRUE(answer);
  EXPECT_THAT(*answer, ::testing::StartsWith("error Conflict"));
}

TEST(LockFileTest, ForkedChildDoesNotKeepTheLock) {
  ScopedTempDir dir;
  CAIRN_ASSERT_OK_AND_ASSIGN(auto lock, LockFile::Acquire(dir / "LOCK"));
  const pid_t data_loader = ::fork();
  if (data_loader == 0) {
    ::pause();  // holds a copy of every descriptor
    ::_exit(0);
  }
  lock.reset();
  // Another process, because a process is not excluded by its own locks.
  const pid_t other = ::fork();
  if (other == 0) ::_exit(LockFile::Acquire(dir / "LOCK") ? 0 : 1);
  int status = 0;
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0) << "the forked child still holds the lock";
  ::kill(data_loader, SIGKILL);
  ::waitpid(data_loader, &status, 0);
}

TEST(LockFileTest, EndOfAForkedChildLeavesTheParentsLock) {
  ScopedTempDir dir;
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto lock, LockFile::Acquire(dir / "LOCK"));
  for (int i = 0; i < 2; ++i) {
    // The first child closes its copies of the descriptors when it ends; the second requests the
    // lock.
    const pid_t child = ::fork();
    if (child == 0) {
      ::close_range(3, ~0u, 0);
      if (i == 0) ::_exit(0);
      ::execl(CAIRN_STORE_PROGRAM, CAIRN_STORE_PROGRAM, "hold", dir.path().c_str(), nullptr);
      ::_exit(9);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (i == 1) {
      EXPECT_EQ(WEXITSTATUS(status), 1) << "the second writer got the lock";
    }
  }
}

}  // namespace
}  // namespace cairn::kv
