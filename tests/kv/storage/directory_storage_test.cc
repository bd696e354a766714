// Objects as files: crashes and failures at every step, several processes, and foreign files.

#include "kv/storage/files/internal/directory_storage.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <list>
#include <thread>

#include "kv/io/internal/file.h"
#include "tests/support/fault_hook.h"
#include "tests/support/forked_child.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::kv::internal {
namespace {

using cairn::testing::FailAt;
using cairn::testing::FailNth;
using cairn::testing::FaultPass;
using cairn::testing::ForkedChild;
using cairn::testing::IsError;
using cairn::testing::KillAt;
using cairn::testing::NoFault;
using cairn::testing::ReadText;
using cairn::testing::ScopedFaults;
using cairn::testing::ScopedTempDir;
using cairn::testing::WriteText;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class DirectoryStorageTest : public ::testing::Test {
 protected:
  std::vector<std::string> List(std::string_view prefix = "") {
    Result<std::vector<std::string>> names = storage_.List(prefix);
    CAIRN_EXPECT_OK(names);
    if (!names) return {};
    std::ranges::sort(*names);
    return *std::move(names);
  }
  /// Returns the sorted entries of a folder of the root, temporary files included.
  std::vector<std::string> Files(const std::string& folder) {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(path_ + "/" + folder)) {
      files.push_back(entry.path().filename().string());
    }
    std::ranges::sort(files);
    return files;
  }
  bool Exists(std::string_view name) { return ObjectExists(storage_, name).value(); }

  ScopedTempDir dir_;
  const std::string path_ = dir_ / "store";
  DirectoryStorage storage_{path_};
};

/// Performs the operation, and returns the points that it passes.
template <typename Operation>
std::vector<std::string> PointsOf(const Operation& operation) {
  const ScopedFaults faults(NoFault());
  CAIRN_EXPECT_OK(operation());
  std::vector<std::string> points;
  for (const FaultPass& pass : faults.passes()) points.push_back(pass.point);
  return points;
}

TEST_F(DirectoryStorageTest, PutIfAbsentSyncsBeforeAndAfterTheLink) {
  CAIRN_ASSERT_OK(storage_.Put("roots/0", {}));  // creates the directories
  EXPECT_THAT(PointsOf([&] { return storage_.PutIfAbsent("roots/1", AsBytes("1")); }),
              ElementsAre("roots.create", "roots.write", "roots.sync", "roots.link", "roots.linked",
                          "roots.directory_sync", "roots.done", "roots.remove"));
}

TEST_F(DirectoryStorageTest, PutSyncsBeforeAndAfterTheRename) {
  CAIRN_ASSERT_OK(storage_.Put("CAIRN", {}));
  EXPECT_THAT(PointsOf([&] { return storage_.Put("lease", AsBytes("1")); }),
              ElementsAre("lease.create", "lease.write", "lease.sync", "lease.rename",
                          "lease.linked", "lease.directory_sync", "lease.done"));
}

TEST_F(DirectoryStorageTest, PutVolatileSyncsNothingButTheNameOfANewRoot) {
  const auto put = [&] { return storage_.PutVolatile("leases/one", {}); };
  EXPECT_THAT(PointsOf(put), ElementsAre("leases.create", "leases.directory_sync", "leases.create",
                                         "leases.create", "leases.write", "leases.rename"));
  EXPECT_THAT(PointsOf(put),
              ElementsAre("leases.create", "leases.create", "leases.write", "leases.rename"));
}

TEST_F(DirectoryStorageTest, OverwriteKeepsTheFileAndChangesNoOther) {
  const auto overwrite = [&] { return storage_.Overwrite("hint", AsBytes("two")); };
  CAIRN_ASSERT_OK(storage_.Put("hint", AsBytes("one")));
  EXPECT_THAT(PointsOf(overwrite), ElementsAre("hint.write"));
  EXPECT_EQ(ReadText(path_ + "/hint"), "two");
  for (const bool is_symbolic : {false, true}) {
    WriteText(path_ + "/other", "old");
    std::filesystem::remove(path_ + "/hint");
    is_symbolic ? std::filesystem::create_symlink("other", path_ + "/hint")
                : std::filesystem::create_hard_link(path_ + "/other", path_ + "/hint");
    CAIRN_ASSERT_OK(overwrite());
    EXPECT_EQ(ReadText(path_ + "/hint"), "two");
    EXPECT_EQ(ReadText(path_ + "/other"), "old");
  }
  for (const char* const text : {"", "longer"}) {
    WriteText(path_ + "/hint", text);
    CAIRN_ASSERT_OK(overwrite());
    EXPECT_EQ(ReadText(path_ + "/hint"), "two");
  }
}

TEST_F(DirectoryStorageTest, PutIfAbsentVolatileSyncsNothing) {
  CAIRN_ASSERT_OK(storage_.Put("pending/a/0", {}));  // creates the directories
  EXPECT_THAT(PointsOf([&] { return storage_.PutIfAbsentVolatile("pending/a/1", AsBytes("1")); }),
              ElementsAre("pending.create", "pending.write", "pending.link", "pending.remove"));
  EXPECT_THAT(storage_.PutIfAbsentVolatile("pending/a/1", AsBytes("2")),
              IsError(ErrorCode::kConflict, "pending/a/1"));
  EXPECT_THAT(Files("pending/a"), ElementsAre("0", "1"));
}

TEST_F(DirectoryStorageTest, AFolderOfAVolatileObjectIsSyncedForADurableOne) {
  CAIRN_ASSERT_OK(storage_.PutVolatile("leases/one", {}));
  EXPECT_THAT(PointsOf([&] { return storage_.PrepareFile("leases/two"); }),
              ::testing::Contains("leases.directory_sync"));
}

TEST_F(DirectoryStorageTest, NewDirectoriesAreSyncedInTheirParents) {
  EXPECT_THAT(PointsOf([&] { return storage_.PrepareFile("pending/a/part"); }),
              ElementsAre("pending.create", "pending.directory_sync", "pending.create",
                          "pending.directory_sync", "pending.create", "pending.directory_sync"));
  EXPECT_THAT(PointsOf([&] { return storage_.PrepareFile("pending/a/other"); }), IsEmpty());
}

// A scenario that passes every kind of point, and what is visible after each of its steps.
Result<void> PutEverything(DirectoryStorage& storage) {
  CAIRN_TRY(storage.PutIfAbsent("roots/1", AsBytes("root")));
  CAIRN_TRY(storage.Put("lease", AsBytes("lease")));
  CAIRN_TRY_ASSIGN(auto writer, storage.Create("pending/a/part"));
  CAIRN_TRY(writer->Append(AsBytes("part")));
  CAIRN_TRY(writer->Finish());
  return storage.Remove("pending/a/part");
}

void ExpectCompleteObjects(DirectoryStorage& storage, const std::string& context) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, storage.List(""));
  for (const std::string& name : names) {
    if (name == "pending/a/part") continue;  // may be incomplete: no root names it
    CAIRN_ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> bytes, storage.Read(name, 100));
    EXPECT_EQ(bytes.size(), name == "lease" ? 5u : 4u) << name << " after " << context;
  }
}

TEST_F(DirectoryStorageTest, AFailureAtAnyPointLeavesCompleteObjectsAndNothingElse) {
  uint32_t failed_count = 0;
  for (uint32_t n = 1;; ++n) {
    ASSERT_LT(n, 100u);
    const std::string path = dir_ / fmt::format("store-{}", n);
    DirectoryStorage storage(path);
    std::string fired_at;
    {
      const ScopedFaults faults(FailNth(n, EIO));
      const Result<void> put = PutEverything(storage);
      fired_at = faults.fired_at();
      if (fired_at.empty()) {
        CAIRN_EXPECT_OK(put);
        break;
      }
      // Nothing depends on the removal of a temporary name.
      if (fired_at != "roots.remove") {
        EXPECT_THAT(put, IsError(ErrorCode::kUnavailable, "Input/output error")) << fired_at;
        ++failed_count;
      }
    }
    ExpectCompleteObjects(storage, fired_at);
    CAIRN_ASSERT_OK(storage.RemoveLeftovers(~0u));
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_.path())) {
      EXPECT_FALSE(entry.path().filename().string().starts_with('.')) << entry.path();
    }
    const Result<void> again = PutEverything(storage);
    EXPECT_TRUE(again || again.error().code == ErrorCode::kConflict) << fired_at;
  }
  EXPECT_GT(failed_count, 25u);
}

TEST_F(DirectoryStorageTest, AProcessThatDiesAtAnyPointLeavesCompleteObjectsAndTemporaryFiles) {
  std::vector<FaultPass> passes;
  {
    const ScopedFaults faults(NoFault());
    DirectoryStorage storage(dir_ / "all");
    CAIRN_ASSERT_OK(PutEverything(storage));
    passes = faults.passes();
  }
  for (size_t n = 0; n < passes.size(); ++n) {
    const FaultPass& pass = passes[n];
    const std::string path = dir_ / fmt::format("store-{}", n);
    ForkedChild child([&] {
      DirectoryStorage storage(path);
      const ScopedFaults faults(KillAt(pass.point, pass.occurrence));
      return PutEverything(storage).has_value();
    });
    EXPECT_TRUE(WIFSIGNALED(child.Wait())) << pass.point;
    DirectoryStorage storage(path);
    ExpectCompleteObjects(storage, pass.point);
    if (pass.point == "roots.linked") {
      EXPECT_TRUE(ObjectExists(storage, "roots/1").value());
    }
    CAIRN_ASSERT_OK(storage.RemoveLeftovers(~0u));
    CAIRN_ASSERT_OK(storage.Remove("roots/1"));
    CAIRN_ASSERT_OK(storage.Remove("pending/a/part"));
    CAIRN_EXPECT_OK(PutEverything(storage));
  }
}

TEST_F(DirectoryStorageTest, OnlyOneOfManyProcessesPutsAnAbsentObject) {
  constexpr int kProcesses = 4;
  constexpr int kRounds = 200;
  std::array<int, 2> start = {};
  ASSERT_EQ(::pipe(start.data()), 0);
  std::list<ForkedChild> children;
  for (int process = 0; process < kProcesses; ++process) {
    children.emplace_back([&, process] {
      char byte = 0;
      ::close(start[1]);
      (void)!::read(start[0], &byte, 1);  // returns when the parent closes its end
      DirectoryStorage storage(path_);
      for (int round = 0; round < kRounds; ++round) {
        const auto put = storage.PutIfAbsent(fmt::format("roots/{}", round), AsBytes("x"));
        if (!put && put.error().code != ErrorCode::kConflict) return false;
        if (put && !storage.Put(fmt::format("won/{}-{}", round, process), {})) return false;
      }
      return true;
    });
  }
  ::close(start[0]);
  ::close(start[1]);
  for (ForkedChild& child : children) EXPECT_EQ(child.Wait(), 0);
  EXPECT_EQ(Files("won").size(), kRounds);
  EXPECT_EQ(Files("roots").size(), kRounds);
}

TEST_F(DirectoryStorageTest, AReadAfterAFailedSyncSyncsFirst) {
  CAIRN_ASSERT_OK(storage_.Put("roots/0", {}));
  {
    const ScopedFaults faults([](const FaultPass& pass, uint32_t) {
      return pass.point == "roots.directory_sync" ? EIO : 0;
    });
    EXPECT_THAT(storage_.PutIfAbsent("roots/1", AsBytes("1")),
                IsError(ErrorCode::kUnavailable, "sync"));
    // The file is there, but a power failure could remove it.
    EXPECT_THAT(storage_.Size("roots/1"), IsError(ErrorCode::kUnavailable, "sync"));
    EXPECT_THAT(storage_.ReadRange("roots/1", 0, {}), IsError(ErrorCode::kUnavailable, "sync"));
    CAIRN_EXPECT_OK(storage_.Put("lease", {}));
    CAIRN_EXPECT_OK(storage_.Size("lease"));  // in another directory
  }
  const auto look = [&] { return storage_.Size("roots/1"); };
  EXPECT_THAT(PointsOf(look), ElementsAre("roots.directory_sync"));
  EXPECT_THAT(PointsOf(look), IsEmpty());
}

TEST_F(DirectoryStorageTest, AFullDiskIsResourceExhaustedAndLeavesNoFile) {
  CAIRN_ASSERT_OK(storage_.Put("roots/0", {}));
  for (const char* point : {"roots.create", "roots.write", "roots.sync", "roots.link"}) {
    const ScopedFaults faults(FailAt(point, 1, ENOSPC));
    EXPECT_THAT(storage_.PutIfAbsent("roots/1", AsBytes("1")),
                IsError(ErrorCode::kResourceExhausted, "No space left"))
        << point;
    EXPECT_THAT(Files("roots"), ElementsAre("0")) << point;
  }
  {
    const ScopedFaults faults(FailAt("roots.rename", 1, EDQUOT));
    EXPECT_THAT(storage_.Put("roots/1", AsBytes("1")), IsError(ErrorCode::kResourceExhausted, ""));
  }
  EXPECT_THAT(Files("roots"), ElementsAre("0"));
}

TEST_F(DirectoryStorageTest, CreatesTheRootButNotItsParents) {
  EXPECT_FALSE(std::filesystem::exists(path_));
  CAIRN_ASSERT_OK(storage_.Put("CAIRN", {}));
  DirectoryStorage elsewhere(dir_ / "none/store");
  EXPECT_THAT(elsewhere.Put("CAIRN", {}), IsError(ErrorCode::kNotFound, "none/store"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "none"));
}

TEST_F(DirectoryStorageTest, WritesAgainAfterAnotherProcessRemovedTheDirectory) {
  CAIRN_ASSERT_OK(storage_.Put("pending/a/1", {}));
  std::filesystem::remove_all(path_ + "/pending");
  CAIRN_ASSERT_OK(storage_.PutIfAbsent("pending/a/2", {}));
  std::filesystem::remove_all(path_ + "/pending");
  CAIRN_ASSERT_OK(storage_.PutIfAbsent("pending/b/2", {}));
  std::filesystem::remove_all(path_ + "/pending");
  CAIRN_ASSERT_OK_AND_ASSIGN(auto writer, storage_.Create("pending/a/3"));
  CAIRN_ASSERT_OK(writer->Finish());
  EXPECT_THAT(List(), ElementsAre("pending/a/3"));
}

TEST_F(DirectoryStorageTest, RemovesEmptyDirectoriesBelowTheFirstLevel) {
  CAIRN_ASSERT_OK(storage_.Put("pending/a/1", {}));
  CAIRN_ASSERT_OK(storage_.Put("pending/a/2", {}));
  CAIRN_ASSERT_OK(storage_.Remove("pending/a/1"));
  EXPECT_THAT(Files("pending"), ElementsAre("a"));
  CAIRN_ASSERT_OK(storage_.Remove("pending/a/2"));
  EXPECT_THAT(Files("pending"), IsEmpty());
}

TEST_F(DirectoryStorageTest, ListSkipsFilesThatAreNotObjects) {
  CAIRN_ASSERT_OK(storage_.Put("roots/1", {}));
  std::filesystem::create_directory(path_ + "/lost+found");
  std::filesystem::create_directory(path_ + "/.hidden");
  for (const char* name :
       {"/lost+found/1", "/.hidden/1", "/roots/.0123456789abcdef.tmp", "/roots/a b", "/.nfs0001"}) {
    std::ofstream(path_ + name) << "x";
  }
  EXPECT_THAT(List(), ElementsAre("roots/1"));
  CAIRN_ASSERT_OK(storage_.RemoveLeftovers(~0u));
  EXPECT_THAT(Files("roots"), ElementsAre("1", "a b"));
  EXPECT_THAT(Files(".hidden"), ElementsAre("1"));
}

TEST_F(DirectoryStorageTest, RemovesTemporaryFilesOfTheStoreAndNothingElse) {
  const std::string temporary = ".0123456789abcdef.tmp";
  const std::string attempt = "pending/00000001000000000000000000000000-7-0";
  const auto write = [](const std::string& path) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << "x";
  };
  const std::vector<std::string> own = {"",       "roots/",   "tables/", "segments/",
                                        "pages/", "pending/", "leases/", attempt + "/"};
  for (const std::string& folder : own) write(path_ + "/" + folder + temporary);
  std::vector<std::string> foreign;
  for (const char* folder : {"notes/", "roots/old/", "roots/.trash/", "pending/a/",
                             "pending/0000000100000000-7/", "segments/.0123456789abcdee.tmp/"}) {
    foreign.push_back(path_ + "/" + folder + temporary);
  }
  for (const std::string& folder : own) {
    for (const char* name :
         {".tmp", ".0123456789ABCDEF.tmp", ".0123456789abcdeg.tmp", ".0123456789abcde.tmp",
          ".settings-for-me.tmp", "0123456789abcdef.tmp", ".0123456789abcdef.tmq"}) {
      foreign.push_back(path_ + "/" + folder + name);
    }
  }
  foreign.push_back(dir_ / "outside/" + temporary);
  for (const std::string& path : foreign) write(path);
  for (const char* link :
       {"roots/.fedcba9876543210.tmp", "pending/00000001000000000000000000000000-8-0", "outside",
        "segments/outside"}) {
    foreign.push_back(path_ + "/" + link);
    std::filesystem::create_directory_symlink(dir_ / "outside", foreign.back());
  }
  for (const char* loop : {"loop", "pending/loop", "segments/loop"}) {
    foreign.push_back(path_ + "/" + loop);
    std::filesystem::create_directory_symlink(".", foreign.back());
  }
  ASSERT_EQ(::mkfifo((path_ + "/.1111111111111111.tmp").c_str(), 0600), 0);
  foreign.push_back(path_ + "/.1111111111111111.tmp");

  CAIRN_ASSERT_OK(storage_.RemoveLeftovers(~0u));
  for (const std::string& folder : own) {
    EXPECT_FALSE(std::filesystem::exists(path_ + "/" + folder + temporary)) << folder;
  }
  for (const std::string& path : foreign) {
    EXPECT_TRUE(std::filesystem::exists(std::filesystem::symlink_status(path))) << path;
  }
  EXPECT_THAT(List("pending/"),
              ElementsAre(attempt + "/0123456789abcdef.tmp", "pending/0123456789abcdef.tmp"));
  EXPECT_THAT(List("segments/"), ElementsAre("segments/0123456789abcdef.tmp"));
}

/// How the path of a storage comes to mean another directory, or none.
struct Replacement {
  const char* name;
  void (*replace)(const ScopedTempDir& dir);
};

class ReplacedDirectoryTest : public ::testing::TestWithParam<Replacement> {};

// The storage is that at "link", which is a link to "store", relative to the working directory.
TEST_P(ReplacedDirectoryTest, AnOpenStorageIsTheDirectoryThatItHasOpened) {
  namespace fs = std::filesystem;
  const ScopedTempDir dir;
  fs::create_directory(dir / "other");
  fs::create_directory(dir / "store");
  fs::create_directory_symlink("store", dir / "link");
  const fs::path before = fs::current_path();
  fs::current_path(dir.path());
  DirectoryStorage storage("./link/");
  EXPECT_EQ(storage.address(), dir / "link");
  CAIRN_ASSERT_OK(storage.Put("roots/1", AsBytes("1")));
  GetParam().replace(dir);
  fs::current_path(before);

  CAIRN_ASSERT_OK(storage.Put("hint", AsBytes("2")));
  CAIRN_ASSERT_OK(storage.PutIfAbsent("roots/2", AsBytes("2")));
  CAIRN_ASSERT_OK(storage.PutIfAbsentVolatile("pending/a/1", AsBytes("2")));
  CAIRN_ASSERT_OK_AND_ASSIGN(auto writer, storage.Create("tables/1"));
  CAIRN_ASSERT_OK(writer->Append(AsBytes("2")));
  CAIRN_ASSERT_OK(writer->Finish());
  CAIRN_ASSERT_OK(storage.Create("tables/2"));  // and discards it
  CAIRN_ASSERT_OK(storage.PrepareFile("segments/1"));
  CAIRN_ASSERT_OK(storage.SyncNames("segments/"));
  CAIRN_ASSERT_OK(storage.Remove("roots/1"));
  CAIRN_ASSERT_OK(storage.RemoveLeftovers(~0u));
  CAIRN_ASSERT_OK_AND_ASSIGN(auto names, storage.List(""));
  std::ranges::sort(names);
  EXPECT_THAT(names, ElementsAre("hint", "pending/a/1", "roots/2", "tables/1"));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto bytes, storage.Read("roots/2", 1));
  EXPECT_EQ(storage.Size("tables/1").value(), 1u);
  const fs::path moved = fs::exists(dir / "moved") ? dir / "moved" : dir / "store";
  EXPECT_TRUE(fs::exists(moved / "roots/2"));
  EXPECT_TRUE(fs::is_empty(dir / "other"));
}

INSTANTIATE_TEST_SUITE_P(
    Ways, ReplacedDirectoryTest,
    ::testing::Values(Replacement{"Nothing", [](const ScopedTempDir&) {}},
                      Replacement{"MovedAway",
                                  [](const ScopedTempDir& dir) {
                                    std::filesystem::rename(dir / "store", dir / "moved");
                                  }},
                      Replacement{"MovedAwayAndReplaced",
                                  [](const ScopedTempDir& dir) {
                                    std::filesystem::rename(dir / "store", dir / "moved");
                                    std::filesystem::create_directory_symlink("other",
                                                                              dir / "store");
                                  }},
                      Replacement{"LinkReplaced",
                                  [](const ScopedTempDir& dir) {
                                    std::filesystem::create_directory_symlink("other", dir / "new");
                                    std::filesystem::rename(dir / "new", dir / "link");
                                  }}),
    [](const auto& info) { return info.param.name; });

TEST_F(DirectoryStorageTest, ARemovedDirectoryIsNotCreatedAgain) {
  CAIRN_ASSERT_OK(storage_.Put("roots/1", AsBytes("1")));
  std::filesystem::remove_all(path_);
  for (const bool is_replaced : {false, true}) {
    if (is_replaced) std::filesystem::create_directory(path_);
    const auto removed = IsError(ErrorCode::kFailedPrecondition, "removed since it was opened");
    EXPECT_THAT(storage_.Put("roots/2", {}), removed);
    EXPECT_THAT(storage_.PutIfAbsent("roots/2", {}), removed);
    EXPECT_THAT(storage_.PutIfAbsentVolatile("pending/a/1", {}), removed);
    EXPECT_THAT(storage_.PutVolatile("hint", {}), removed);
    EXPECT_THAT(storage_.Create("tables/1"), removed);
    EXPECT_THAT(storage_.List("roots/"), removed);
    EXPECT_THAT(storage_.Size("roots/1"), IsError(ErrorCode::kNotFound, "roots/1"));
    CAIRN_EXPECT_OK(storage_.Remove("roots/1"));
    EXPECT_EQ(std::filesystem::exists(path_), is_replaced);
    EXPECT_TRUE(!is_replaced || std::filesystem::is_empty(path_));
  }
}

TEST_F(DirectoryStorageTest, FoldersMayBeSymbolicLinks) {
  CAIRN_ASSERT_OK(storage_.Put("CAIRN", {}));
  std::filesystem::create_directory(dir_ / "disk");
  std::filesystem::create_directory_symlink(dir_ / "disk", path_ + "/segments");
  CAIRN_ASSERT_OK(storage_.PutIfAbsent("segments/1", {}));
  EXPECT_THAT(List("segments/"), ElementsAre("segments/1"));
  EXPECT_THAT(List(), ElementsAre("CAIRN", "segments/1"));
  EXPECT_TRUE(std::filesystem::exists(dir_ / "disk/1"));
}

TEST_F(DirectoryStorageTest, CreateRefusesAnExistingFile) {
  CAIRN_ASSERT_OK(storage_.Put("tables/1", AsBytes("1")));
  EXPECT_THAT(storage_.Create("tables/1"), IsError(ErrorCode::kConflict, "tables/1"));
  EXPECT_TRUE(Exists("tables/1"));
}

class AwaitChangeTest : public DirectoryStorageTest,
                        public ::testing::WithParamInterface<const char*> {};

// The prefix is that of an existing directory, of one that does not exist yet, or the root.
TEST_P(AwaitChangeTest, ReturnsAfterAPut) {
  CAIRN_ASSERT_OK(storage_.Put("pending/a/0", {}));
  std::jthread writer([&](const std::stop_token& stop) {
    DirectoryStorage other(path_);
    for (int i = 0; !stop.stop_requested(); ++i) {
      CAIRN_EXPECT_OK(other.Put(fmt::format("{}{}", GetParam(), i), {}));
      CAIRN_EXPECT_OK(other.Remove(fmt::format("{}{}", GetParam(), i)));
    }
  });
  const auto begin = std::chrono::steady_clock::now();
  storage_.AwaitChange(GetParam(), std::chrono::seconds(60));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

INSTANTIATE_TEST_SUITE_P(Prefixes, AwaitChangeTest,
                         ::testing::Values("pending/a/", "pending/b/", ""));

TEST_F(DirectoryStorageTest, AwaitChangeWithoutARootSleeps) {
  const auto begin = std::chrono::steady_clock::now();
  storage_.AwaitChange("roots/", std::chrono::milliseconds(20));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(20));
}

}  // namespace
}  // namespace cairn::kv::internal
