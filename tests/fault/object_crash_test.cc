// Goal: a process that dies before any change of the storage during a commit, overwrite, delete,
// store creation or open for writing leaves the old or the new state and nothing else. Readers see
// that state at once, and the next writer cleans up. Both remain true if the process dies again
// during the cleanup.
//
// crash_test does the same at each operation on a file. This one needs only a storage: the one that
// CAIRN_TEST_STORES names, or a directory whose objects are not used as files. Requests that were
// in flight may or may not be performed.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/options.h"
#include "kv/read/snapshot.h"
#include "kv/storage/open/open_storage.h"
#include "kv/store.h"
#include "tests/fault/crash_checks.h"
#include "tests/support/result_matchers.h"
#include "tests/support/store_address.h"

namespace cairn::kv {
namespace {

using cairn::testing::NewStoreAddress;
using cairn::testing::ScopedTempDir;
using ::testing::AnyOf;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

constexpr uint64_t kMaxObjectBytes = 1 << 30;

Result<void> RemoveStore(const std::string& address) {
  CAIRN_TRY_ASSIGN(const auto storage, OpenStorage(address));
  CAIRN_TRY_ASSIGN(const std::vector<std::string> names, storage->List(""));
  for (const std::string& name : names) CAIRN_TRY(storage->Remove(name));
  return storage->RemoveLeftovers(~0u);
}

class ObjectCrash : public ::testing::Test {
 protected:
  /// Returns the address of a copy of the store.
  std::string CopyOf(const std::string& address) {
    std::string copy = NewStoreAddress(dir_, fmt::format("copy{}", copy_count_++));
    Copy(address, copy);
    return copy;
  }

  /// Opens copies of `crashed` for writing, and kills the process before the n-th change, for each
  /// n. Returns the number of crashes.
  uint32_t KillRecovery(const std::string& crashed, const Steps& before, const Steps& after) {
    for (uint32_t n = 1;; ++n) {
      SCOPED_TRACE(fmt::format("opened again and killed before change {}", n));
      const std::string again = CopyOf(crashed);
      const int status = RunStoreProgram({"open-objects", again, std::to_string(n)});
      EXPECT_THAT(status, AnyOf(0, -SIGKILL));
      ExpectOldOrNew(again, before, after);
      CAIRN_EXPECT_OK(RemoveStore(again));
      if (status != -SIGKILL || HasFailure()) return n - 1;
    }
  }

  ScopedTempDir dir_{std::filesystem::exists("/dev/shm") ? "/dev/shm" : ""};

 private:
  static void Copy(const std::string& from, const std::string& to) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto source, OpenStorage(from));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto target, OpenStorage(to));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto names, source->List(""));
    for (const std::string& name : names) {
      CAIRN_ASSERT_OK_AND_ASSIGN(const auto bytes, source->Read(name, kMaxObjectBytes));
      CAIRN_ASSERT_OK(target->Put(name, bytes));
    }
  }

  int copy_count_ = 0;
};

class ObjectCrashTest : public ObjectCrash, public ::testing::WithParamInterface<Operation> {};

TEST_P(ObjectCrashTest, LeavesOldOrNewStateBeforeEveryChange) {
  const char* const name = OperationName(GetParam());
  const std::string history = NewStoreAddress(dir_, "history");
  CAIRN_ASSERT_OK_AND_ASSIGN(const Steps before, MakeHistory(history));
  const Steps after = After(GetParam(), before);
  uint32_t crashes = 0, recovery_crashes = 0;
  for (;;) {
    SCOPED_TRACE(fmt::format("{} killed before change {}", name, crashes + 1));
    const std::string crashed = CopyOf(history);
    const int status =
        RunStoreProgram({"operate-objects", crashed, name, std::to_string(crashes + 1)});
    ASSERT_THAT(status, AnyOf(0, -SIGKILL));
    if (status == 0) break;
    ++crashes;
    recovery_crashes += KillRecovery(crashed, before, after);
    ExpectOldOrNew(crashed, before, after);
    CAIRN_EXPECT_OK(RemoveStore(crashed));
    if (HasFailure()) return;
  }
  EXPECT_GT(crashes, 2u);
  fmt::print("{}: {} crashes, {} more in the recoveries after them\n", name, crashes,
             recovery_crashes);
}

INSTANTIATE_TEST_SUITE_P(Every, ObjectCrashTest, ::testing::ValuesIn(kOperations),
                         kOperationTestName);

// An open for writing that has all kinds of objects to remove.
TEST_F(ObjectCrash, SweepLeavesEveryStepBeforeEveryChange) {
  const std::string history = NewStoreAddress(dir_, "history");
  CAIRN_ASSERT_OK_AND_ASSIGN(const Steps before, MakeHistory(history));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto storage, OpenStorage(history));
  for (const char* name :
       {"segments/00000001-0123456789abcdef.seg", "tables/00000001-0123456789abcdef.sst",
        "pages/00000001-0123456789abcdef.steps", "pending/0000000100000000-7-0/1.part",
        "pending/0000000100000000-7-0/failed", "leases/0000000100000000"}) {
    CAIRN_ASSERT_OK(storage->Put(name, std::as_bytes(std::span("garbage", 7))));
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto planted, FindLeftovers(history));
  EXPECT_THAT(planted, SizeIs(5));
  const uint32_t crashes = KillRecovery(history, before, before);
  EXPECT_GT(crashes, 6u);
  ExpectOldOrNew(history, before, before);
  fmt::print("sweep: {} crashes\n", crashes);
}

TEST_F(ObjectCrash, InterruptedCreationIsStartedAgain) {
  uint32_t crashes = 0;
  for (;; ++crashes) {
    SCOPED_TRACE(fmt::format("creation killed before change {}", crashes + 1));
    const std::string address = NewStoreAddress(dir_, "created");
    const int status = RunStoreProgram({"open-objects", address, std::to_string(crashes + 1)});
    ASSERT_THAT(status, AnyOf(0, -SIGKILL));
    // A reader sees an empty store or none, and never a damaged one.
    const auto reader = LoadAll(address);
    if (!reader) {
      EXPECT_THAT(reader.error().code, AnyOf(ErrorCode::kNotFound, ErrorCode::kInvalidArgument))
          << reader.error().ToString();
    } else {
      EXPECT_THAT(*reader, IsEmpty());
    }
    {
      CAIRN_ASSERT_OK_AND_ASSIGN(const auto store,
                                 Store::Open(address, OpenMode::kWrite, SmallBlocks()));
      CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(1)));
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(const Steps steps, LoadAll(address));
    EXPECT_TRUE(steps.at(1) == MakeSample(1));
    CAIRN_EXPECT_OK(RemoveStore(address));
    if (status == 0) break;
  }
  EXPECT_GT(crashes, 1u);
  fmt::print("create: {} crashes\n", crashes);
}

}  // namespace
}  // namespace cairn::kv
