// Goal: a process that dies at any point of a commit, overwrite, delete, store creation or open for
// writing leaves the old or the new state and nothing else. Readers see that state at once, and the
// next writer cleans up. Both remain true if the process dies again during the cleanup.
//
// A process dies either at a named point at which it changes files, or before a change of the
// storage. The latter needs only a storage: the one that CAIRN_TEST_STORES names, or a directory
// whose objects are not used as files. Requests that were in flight may or may not be performed.
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
#include <functional>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "kv/base/options.h"
#include "kv/read/snapshot.h"
#include "kv/storage/open/open_storage.h"
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

using cairn::testing::FaultPass;
using cairn::testing::NoFault;
using cairn::testing::ScopedFaults;
using cairn::testing::ScopedTempDir;
using ::testing::AnyOf;
using ::testing::ContainerEq;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)
namespace fs = std::filesystem;

constexpr uint64_t kMaxObjectBytes = 1 << 30;

/// Describes the files of a store up to random ids. Crashes that leave the same description need
/// only one test of the recovery.
std::string ShapeOf(const std::string& path) {
  static const std::regex id("[0-9a-f]{16}");
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    std::string name = fs::relative(entry.path(), path);
    // The number of a root is part of the state.
    if (!name.ends_with(".root")) name = std::regex_replace(name, id, "*");
    files.push_back(fmt::format("{} {}", name, entry.is_regular_file() ? entry.file_size() : 0));
  }
  std::ranges::sort(files);
  return fmt::format("{}", fmt::join(files, "\n"));
}

Result<void> CopyObjects(const std::string& from, const std::string& to) {
  CAIRN_TRY_ASSIGN(const auto source, OpenStorage(from));
  CAIRN_TRY_ASSIGN(const auto target, OpenStorage(to));
  CAIRN_TRY_ASSIGN(const auto names, source->List(""));
  for (const std::string& name : names) {
    CAIRN_TRY_ASSIGN(const auto bytes, source->Read(name, kMaxObjectBytes));
    CAIRN_TRY(target->Put(name, bytes));
  }
  return {};
}

Result<void> RemoveObjects(const std::string& address) {
  CAIRN_TRY_ASSIGN(const auto storage, OpenStorage(address));
  CAIRN_TRY_ASSIGN(const std::vector<std::string> names, storage->List(""));
  for (const std::string& name : names) CAIRN_TRY(storage->Remove(name));
  return storage->RemoveLeftovers(~0u);
}

/// Opens for writing and checks that the store has one of the two states, bit for bit, has no
/// leftovers, and is usable.
void ExpectOldOrNew(const std::string& address, const Steps& before, const Steps& after) {
  {
    // A reader opens the store first, before a writer has cleaned up.
    const auto read = LoadAll(address);
    if (!read && before.empty()) {  // killed while it created the store
      EXPECT_THAT(read.error().code, AnyOf(ErrorCode::kNotFound, ErrorCode::kInvalidArgument))
          << read.error().ToString();
    } else {
      CAIRN_ASSERT_OK(read);
      EXPECT_TRUE(*read == before || *read == after);
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store,
                               Store::Open(address, OpenMode::kWrite, SmallBlocks()));
    CAIRN_ASSERT_OK_AND_ASSIGN(const Steps found, LoadAllFrom(*store));
    EXPECT_TRUE(found == read.value_or(before))
        << "the writer sees other steps than the reader before it";
    ExpectSound(*store);
    ExpectNoLeftovers(address);
    if (fs::exists(address)) {
      for (const auto& entry : fs::recursive_directory_iterator(address)) {
        EXPECT_THAT(entry.path().string(), Not(HasSubstr(".tmp")));
      }
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto storage, OpenStorage(address));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto leases, storage->List("leases/"));
    EXPECT_THAT(leases, SizeIs(1)) << "leases of dead writers remain";
    CAIRN_EXPECT_OK(SaveSample(*store, MakeSample(50)));
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, ReadLatest(address));
  ExpectSample(*snapshot, MakeSample(50));
}

/// What store_program counts until it dies, and during what: an operation, "open" of a store with
/// garbage, or "create".
class CrashTest : public ::testing::TestWithParam<std::tuple<const char*, std::string>> {
 protected:
  static const char* where() { return std::get<0>(GetParam()); }
  static bool at_files() { return std::string(where()) == "files"; }

  /// For n = 1, 2, ... kills the process at the n-th point of the operation on a copy of the store,
  /// and passes the address of the copy to `check`. Returns the number of crashes.
  uint32_t KillAtEvery(const std::string& store, const std::string& operation,
                       const std::function<void(const std::string&)>& check) {
    for (uint32_t n = 1;; ++n) {
      SCOPED_TRACE(fmt::format("{} killed at change {} of {}", operation, n, where()));
      const std::string copy = CopyOf(store);
      const int status = cairn::testing::Child({CAIRN_STORE_PROGRAM, "die", where(), copy,
                                                operation, std::to_string(n)})
                             .Wait();
      EXPECT_THAT(status, AnyOf(0, -SIGKILL));
      check(copy);
      Remove(copy);
      if (status != -SIGKILL || HasFailure()) return n - 1;
    }
  }

  /// Returns whether no crash has left the same files.
  bool IsNew(const std::string& address) {
    return !at_files() || tested_.insert(ShapeOf(address)).second;
  }

  std::string NewAddress(const std::string& name) const {
    return at_files() ? dir_ / name : cairn::testing::NewStoreAddress(dir_, name);
  }

 private:
  /// Returns the address of a copy of the store, or of a new one if `store` is empty.
  std::string CopyOf(const std::string& store) {
    const std::string copy = NewAddress(fmt::format("copy{}", copy_count_++));
    if (store.empty()) return copy;
    if (at_files()) {
      fs::copy(store, copy, fs::copy_options::recursive);
    } else {
      CAIRN_EXPECT_OK(CopyObjects(store, copy));
    }
    return copy;
  }

  void Remove(const std::string& address) {
    if (at_files()) {
      fs::remove_all(address);
    } else {
      CAIRN_EXPECT_OK(RemoveObjects(address));
    }
  }

  // SIGKILL loses nothing that was written, synced or not, so tmpfs is as good as a disk here.
  ScopedTempDir dir_{cairn::testing::FastDirectory()};
  std::set<std::string> tested_;
  int copy_count_ = 0;
};

/// Several ranks pass many points whose recovery is the same. Kills every n-th recovery of theirs.
uint32_t RecoveryStride(std::optional<Operation> operation, bool at_files) {
  return at_files && operation == Operation::kRanks && std::getenv("CAIRN_CRASH_ALL") == nullptr
             ? 6
             : 1;
}

TEST_P(CrashTest, LeavesTheOldOrTheNewState) {
  const std::string& name = std::get<1>(GetParam());
  const std::optional<Operation> operation = OperationNamed(name);
  std::string history;
  Steps before;
  if (name != "create") {
    history = NewAddress("history");
    CAIRN_ASSERT_OK_AND_ASSIGN(before, MakeHistory(history));
  }
  if (name == "open") {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto storage, OpenStorage(history));
    CAIRN_ASSERT_OK(PlantGarbage(*storage));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto planted, FindLeftovers(history));
    EXPECT_THAT(planted, SizeIs(5));
  }
  const Steps after = operation ? After(*operation, before) : before;
  uint32_t number = 0, recoveries = 0, recovery_crashes = 0;
  const uint32_t crashes = KillAtEvery(history, name, [&](const std::string& crashed) {
    if (operation && ++number % RecoveryStride(operation, at_files()) == 0 && IsNew(crashed)) {
      ++recoveries;
      recovery_crashes += KillAtEvery(crashed, "open", [&](const std::string& again) {
        if (IsNew(again)) ExpectOldOrNew(again, before, after);
      });
    }
    ExpectOldOrNew(crashed, before, after);
  });
  const uint32_t least = name == "create" ? 1 : name == "open" ? 6 : 2;
  EXPECT_GT(crashes, at_files() ? 4 * least : least);
  fmt::print("{}: {} crashes, {} more in {} recoveries after them\n", name, crashes,
             recovery_crashes, recoveries);
}

std::vector<std::string> OperationNames() {
  std::vector<std::string> names = {"open", "create"};
  for (const Operation operation : kOperations) names.emplace_back(OperationName(operation));
  return names;
}
constexpr auto kCaseName = [](const auto& info) {
  std::string name = std::get<1>(info.param);
  std::erase(name, '-');
  return name;
};
INSTANTIATE_TEST_SUITE_P(Files, CrashTest,
                         ::testing::Combine(::testing::Values("files"),
                                            ::testing::ValuesIn(OperationNames())),
                         kCaseName);
INSTANTIATE_TEST_SUITE_P(Objects, CrashTest,
                         ::testing::Combine(::testing::Values("objects"),
                                            ::testing::ValuesIn(OperationNames())),
                         kCaseName);

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
  ScopedTempDir dir(cairn::testing::FastDirectory());
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

}  // namespace
}  // namespace cairn::kv
