// Goal: a power cut at any moment of a commit, overwrite, delete, creation or open for writing
// leaves the old or the new state, and no acknowledged step is lost.
//
// The program replaces fsync and fdatasync, and records what they make durable: the contents of
// files, and the names in directories. At each fault point it records states that a power cut could
// leave there:
//   - only what is synced. Names that were removed without a sync are there again;
//   - the same, but without the names that were removed;
//   - all names, and zeros in place of the contents that are not synced;
//   - two mixtures: of names that were put or removed without a sync, and of contents that were
//     written without one, each by chance is durable, is not, or is in part.

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kv/digest.h"
#include "kv/options.h"
#include "kv/snapshot.h"
#include "kv/store.h"
#include "tests/fault/operations.h"
#include "tests/support/fault_hook.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"
#include "tests/support/seeded_random.h"

namespace cairn::kv {
namespace {

using cairn::testing::FaultPass;
using cairn::testing::IsOk;
using cairn::testing::ScopedFaults;
using cairn::testing::ScopedTempDir;
using cairn::testing::SeededRandom;
using ::testing::IsEmpty;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)
namespace fs = std::filesystem;

using Contents = std::shared_ptr<const std::string>;
using Tree = std::map<std::string, Contents>;  // by path relative to the observed directory

/// Reads at most `limit_bytes` from the begin of the file.
std::string ReadText(const std::string& path, uint64_t limit_bytes = ~uint64_t{0}) {
  std::ifstream file(path, std::ios::binary);
  std::string text(std::min<uint64_t>(fs::file_size(path), limit_bytes), '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  return text;
}

ino_t InodeOf(const std::string& path) {
  struct stat status;
  return ::lstat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

/// What is durable below a directory. tmpfs does not reuse the numbers of inodes.
class Disk {
 public:
  explicit Disk(std::string root) : root_(std::move(root)) {
    const std::lock_guard lock(mutex);
    Sync(root_);
    current = this;
  }
  ~Disk() {
    const std::lock_guard lock(mutex);
    current = nullptr;
  }

  /// Records the state of the file or directory, which was just synced. Requires `mutex`.
  void Sync(const std::string& path) {
    if (!path.starts_with(root_)) return;
    if (!fs::is_directory(path)) {
      contents_[InodeOf(path)] = std::make_shared<std::string>(ReadText(path));
      return;
    }
    auto& entries = entries_[InodeOf(path)];
    entries.clear();
    for (const auto& entry : fs::directory_iterator(path)) {
      entries[entry.path().filename()] = {InodeOf(entry.path()), entry.is_directory()};
    }
  }

  /// Everything that exists is durable.
  void SyncAll() {
    const std::lock_guard lock(mutex);
    Sync(root_);
    for (const auto& entry : fs::recursive_directory_iterator(root_)) Sync(entry.path());
  }

  /// The states that a power cut could leave now.
  std::vector<Tree> Cut(SeededRandom& random) {
    const std::lock_guard lock(mutex);
    std::vector<Tree> trees(3);
    AddSynced(InodeOf(root_), "", trees[0]);
    for (const auto& [path, contents] : trees[0]) {
      if (fs::exists(root_ + path)) trees[1][path] = contents;
    }
    for (const auto& entry : fs::recursive_directory_iterator(root_)) {
      if (!entry.is_regular_file()) continue;
      const auto synced = contents_.find(InodeOf(entry.path()));
      const uint64_t size = entry.file_size();
      trees[2][entry.path().string().substr(root_.size())] =
          synced != contents_.end() && synced->second->size() == size
              ? synced->second
              : std::make_shared<std::string>(size, '\0');
    }
    for (int i = 0; i < 2; ++i) trees.push_back(Mixture(trees[0], trees[2], random));
    return trees;
  }

  static inline std::mutex mutex;
  static inline Disk* current = nullptr;

 private:
  struct Entry {
    ino_t inode = 0;
    bool is_directory = false;
  };

  /// Returns a state between that of the synced names and that of all names.
  Tree Mixture(const Tree& synced, const Tree& all, SeededRandom& random) const {
    Tree tree;
    for (const auto& [path, contents] : synced) {
      if (all.contains(path) || random.Chance(0.5)) tree[path] = contents;
    }
    for (const auto& [path, zeros] : all) {
      if (!synced.contains(path) && random.Chance(0.5)) continue;
      const auto known = contents_.find(InodeOf(root_ + path));
      if (known != contents_.end() && known->second->size() == zeros->size()) {
        tree[path] = known->second;
      } else if (random.Chance(0.5)) {
        const uint64_t size = std::min<uint64_t>(zeros->size(), 1 << 20);
        tree[path] = std::make_shared<std::string>(ReadText(root_ + path, random.Between(0, size)));
      } else {
        tree[path] = zeros;
      }
    }
    return tree;
  }

  void AddSynced(ino_t directory, const std::string& path, Tree& tree) const {
    const auto entries = entries_.find(directory);
    if (entries == entries_.end()) return;
    for (const auto& [name, entry] : entries->second) {
      const std::string child = path + "/" + name;
      if (entry.is_directory) {
        AddSynced(entry.inode, child, tree);
        continue;
      }
      // A name that is durable before the contents are.
      const auto synced = contents_.find(entry.inode);
      tree[child] = synced != contents_.end() ? synced->second : std::make_shared<std::string>();
    }
  }

  const std::string root_;
  std::map<ino_t, Contents> contents_;
  std::map<ino_t, std::map<std::string, Entry>> entries_;
};

void NoteSync(int fd) {
  const std::lock_guard lock(Disk::mutex);
  if (Disk::current == nullptr) return;
  std::error_code failed;
  const fs::path path = fs::read_symlink(fmt::format("/proc/self/fd/{}", fd), failed);
  if (!failed) Disk::current->Sync(path);
}

void WriteTree(const Tree& tree, const std::string& path) {
  fs::remove_all(path);
  fs::create_directories(path);
  for (const auto& [name, contents] : tree) {
    fs::create_directories(fs::path(path + name).parent_path());
    std::ofstream(path + name, std::ios::binary) << *contents;
  }
}

/// Identifies a state: several cuts leave the same one.
std::string Signature(const Tree& tree) {
  std::string text;
  for (const auto& [name, contents] : tree) {
    text += fmt::format("{} {} {:x}\n", name, contents->size(),
                        Checksum64(std::as_bytes(std::span(*contents))));
  }
  return text;
}

struct PowerCut {
  std::string point;
  std::vector<Tree> trees;
};

class PowerCutTest : public ::testing::Test {
 protected:
  /// Runs `change` and records a power cut at each fault point, and one after the end.
  std::vector<PowerCut> Record(const std::function<Result<void>()>& change) {
    std::vector<PowerCut> cuts;
    Disk disk(dir_ / "disk");
    disk.SyncAll();
    {
      ScopedFaults faults([&](const FaultPass& pass, uint32_t) {
        if (pass.point.ends_with(".open") || pass.point.ends_with(".read")) return 0;
        cuts.push_back({.point = fmt::format("{} #{}", pass.point, pass.occurrence),
                        .trees = disk.Cut(random_)});
        return 0;
      });
      EXPECT_TRUE(IsOk(change()));
    }
    cuts.push_back({.point = "the end", .trees = disk.Cut(random_)});
    // This process does not end, so its leases would prevent the open after the power cut.
    for (PowerCut& cut : cuts) {
      for (Tree& tree : cut.trees) {
        std::erase_if(tree,
                      [](const auto& file) { return file.first.starts_with("/store/leases"); });
      }
    }
    return cuts;
  }

  /// Checks that each cut left `before` or `after`, and that the last one left `after`.
  void ExpectOldOrNew(const std::vector<PowerCut>& cuts, const Steps& before, const Steps& after) {
    uint32_t old_count = 0, new_count = 0;
    std::map<std::string, bool> seen;  // whether a state is the new one
    for (const PowerCut& cut : cuts) {
      for (size_t variant = 0; variant < cut.trees.size(); ++variant) {
        SCOPED_TRACE(fmt::format("power cut at {}, variant {}", cut.point, variant));
        const auto [state, is_unseen] = seen.try_emplace(Signature(cut.trees[variant]));
        if (is_unseen) {
          const std::string path = dir_ / "after";
          WriteTree(cut.trees[variant], path);
          state->second = Check(path + "/store", before, after);
        }
        const bool is_new = state->second;
        if (HasFailure()) return;
        ++(is_new ? new_count : old_count);
        if (&cut == &cuts.back()) {
          EXPECT_TRUE(is_new) << "an acknowledged change is lost";
        }
      }
    }
    fmt::print("{} power cuts, {} states: {} left the old state, {} the new one\n",
               old_count + new_count, seen.size(), old_count, new_count);
  }

  /// Returns whether the store has the new state.
  bool Check(const std::string& path, const Steps& before, const Steps& after) {
    auto store = Store::Open(path, OpenMode::kWrite, SmallBlocks());
    EXPECT_TRUE(IsOk(store));
    if (!store) return false;
    const auto found = LoadAllFrom(**store);
    EXPECT_TRUE(IsOk(found));
    if (!found) return false;
    EXPECT_TRUE(*found == before || *found == after);
    const auto snapshot = (*store)->Latest();
    const auto damage = Verify(**snapshot);
    EXPECT_TRUE(IsOk(damage));
    EXPECT_THAT(damage.value_or(std::vector<std::string>()), IsEmpty());
    const auto leftovers = FindLeftovers(path);
    EXPECT_TRUE(IsOk(leftovers));
    EXPECT_THAT(leftovers.value_or(std::vector<std::string>()), IsEmpty());
    EXPECT_TRUE(IsOk(SaveSample(**store, MakeSample(50))));
    EXPECT_TRUE(IsOk((*store)->Close()));
    return *found == after;
  }

  std::string StorePath() const { return dir_ / "disk/store"; }

  // Nothing here needs a disk: the states are computed.
  ScopedTempDir dir_{"/dev/shm"};
  SeededRandom random_;
};

TEST_F(PowerCutTest, LeavesOldOrNewStateInEveryOperation) {
  for (const Operation operation : kOperations) {
    SCOPED_TRACE(OperationName(operation));
    fs::remove_all(dir_ / "disk");
    fs::create_directories(dir_ / "disk");
    CAIRN_ASSERT_OK_AND_ASSIGN(const Steps before, MakeHistory(StorePath()));
    std::unique_ptr<Store> store;
    CAIRN_ASSERT_OK_AND_ASSIGN(store, Store::Open(StorePath(), OpenMode::kWrite, SmallBlocks()));
    const auto cuts = Record([&] { return Perform(operation, *store); });
    EXPECT_GT(cuts.size(), 8u);
    CAIRN_ASSERT_OK(store->Close());
    ExpectOldOrNew(cuts, before, After(operation, before));
    if (HasFailure()) return;
  }
}

TEST_F(PowerCutTest, LeavesAllStepsDuringAnOpenForWriting) {
  fs::create_directories(dir_ / "disk");
  CAIRN_ASSERT_OK_AND_ASSIGN(const Steps before, MakeHistory(StorePath()));
  for (const char* name :
       {"/segments/00000001-0123456789abcdef.seg", "/tables/00000001-0123456789abcdef.sst",
        "/roots/.0123456789abcdef.tmp"}) {
    std::ofstream(StorePath() + name) << "garbage";
  }
  std::unique_ptr<Store> store;
  const auto cuts = Record([&]() -> Result<void> {
    CAIRN_TRY_ASSIGN(store, Store::Open(StorePath(), OpenMode::kWrite, SmallBlocks()));
    return {};
  });
  CAIRN_ASSERT_OK(store->Close());
  ExpectOldOrNew(cuts, before, before);
}

// A commit of so high a number that it writes the hint and removes a root.
TEST_F(PowerCutTest, LeavesOldOrNewStateWhenOldRootsAreRemoved) {
  constexpr SampleShape kTiny{.tensor_count = 1, .largest_bytes = 1};
  fs::create_directories(dir_ / "disk");
  std::unique_ptr<Store> store;
  CAIRN_ASSERT_OK_AND_ASSIGN(store, Store::Open(StorePath(), OpenMode::kWrite, SmallBlocks()));
  for (uint64_t root = 2; root <= 79; ++root) {
    CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(1, root, kTiny), /*overwrite=*/true));
  }
  const Steps before{{1, MakeSample(1, 79, kTiny)}}, after{{1, MakeSample(1, 80, kTiny)}};
  const auto cuts = Record([&]() -> Result<void> {
    CAIRN_TRY(SaveSample(*store, after.at(1), /*overwrite=*/true));
    return {};
  });
  EXPECT_TRUE(std::ranges::any_of(cuts.back().trees[2], [](const auto& file) {
    return file.first == "/store/hint" && *file.second == "80";
  }));
  CAIRN_ASSERT_OK(store->Close());
  ExpectOldOrNew(cuts, before, after);
}

TEST_F(PowerCutTest, LeavesAStoreThatCanBeRebuiltDuringARebuild) {
  fs::create_directories(dir_ / "disk");
  CAIRN_ASSERT_OK_AND_ASSIGN(const Steps steps, MakeHistory(StorePath()));
  fs::remove_all(StorePath() + "/roots");
  const auto cuts = Record([&]() -> Result<void> {
    CAIRN_TRY(Store::Rebuild(StorePath()));
    return {};
  });
  std::set<std::string> seen;
  for (const PowerCut& cut : cuts) {
    for (const Tree& tree : cut.trees) {
      if (!seen.insert(Signature(tree)).second) continue;
      SCOPED_TRACE("power cut at " + cut.point);
      WriteTree(tree, dir_ / "after");
      if (!Store::Open(dir_ / "after/store", OpenMode::kRead)) {
        CAIRN_ASSERT_OK(Store::Rebuild(dir_ / "after/store"));
      }
      Check(dir_ / "after/store", steps, steps);
      if (HasFailure()) return;
    }
  }
}

TEST_F(PowerCutTest, LeavesAStoreThatCanBeCreatedAgainDuringTheFirstSave) {
  fs::create_directories(dir_ / "disk");
  const auto cuts = Record([&]() -> Result<void> {
    CAIRN_TRY_ASSIGN(const auto store, Store::Open(StorePath(), OpenMode::kWrite, SmallBlocks()));
    CAIRN_TRY(SaveSample(*store, MakeSample(1)));
    return store->Close();
  });
  ExpectOldOrNew(cuts, {}, {{1, MakeSample(1)}});
}

}  // namespace
}  // namespace cairn::kv

// Instead of those of the C library.
extern "C" int fsync(int fd) {
  const int result = static_cast<int>(::syscall(SYS_fsync, fd));
  if (result == 0) cairn::kv::NoteSync(fd);
  return result;
}
extern "C" int fdatasync(int fd) {
  const int result = static_cast<int>(::syscall(SYS_fdatasync, fd));
  if (result == 0) cairn::kv::NoteSync(fd);
  return result;
}
