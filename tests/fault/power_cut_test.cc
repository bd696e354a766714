// Goal: a power cut at any change of files during a save, overwrite, delete, creation, open for
// writing or rebuild leaves the old or the new state, and no acknowledged step is lost. Here with
// stores whose history is special; tests/fault/sweep_test.cc tests all operations on usual ones.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kv/base/options.h"
#include "kv/read/snapshot.h"
#include "kv/store.h"
#include "tests/fault/disk_model.h"
#include "tests/fault/operations.h"
#include "tests/fault/system_calls.h"
#include "tests/kv/store_checks.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"
#include "tests/support/seeded_random.h"
#include "tests/support/without_value.h"

namespace cairn::kv {
namespace {

using cairn::testing::ChangeRecorder;
using cairn::testing::DigestOf;
using cairn::testing::DiskImage;
using cairn::testing::DiskModel;
using cairn::testing::FastDirectory;
using cairn::testing::IsOk;
using cairn::testing::ScopedTempDir;
using cairn::testing::SeededRandom;
using cairn::testing::WithoutValue;
using cairn::testing::WriteImage;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)
namespace fs = std::filesystem;

struct PowerCut {
  std::string change;  // the one before it
  std::vector<DiskImage> images;
};

/// SmallBlocks, with transfers that pass through the C library.
StoreOptions Observed() {
  StoreOptions options = SmallBlocks();
  options.io->uring = false;
  options.io->direct = false;
  return options;
}

class PowerCutTest : public ::testing::Test {
 protected:
  /// Runs `change`, and returns what a power cut at each of its changes may leave.
  std::vector<PowerCut> Record(const std::function<Result<void>()>& change) {
    std::vector<PowerCut> cuts;
    DiskModel disk(dir_ / "disk");
    ChangeRecorder recorder(dir_ / "disk");
    EXPECT_TRUE(IsOk(change()));
    const auto cut = [&](std::string after) {
      cuts.push_back({.change = std::move(after),
                      .images = {disk.All(), disk.Durable(), disk.NamesOnly(),
                                 disk.Mixture(random_), disk.Mixture(random_)}});
    };
    cut("the begin");
    for (const auto& recorded : recorder.changes()) {
      disk.Apply(recorded);
      cut(recorded.path);
    }
    // This process does not end, so its leases would prevent the open after the power cut.
    for (PowerCut& each : cuts) {
      for (DiskImage& image : each.images) {
        std::erase_if(image,
                      [](const auto& file) { return file.first.starts_with("/store/leases"); });
      }
    }
    return cuts;
  }

  /// Checks that each cut left `before` or `after`, and that the last one left `after`.
  void ExpectOldOrNew(const std::vector<PowerCut>& cuts, const Steps& before, const Steps& after) {
    uint32_t old_count = 0, new_count = 0;
    std::map<uint64_t, bool> seen;  // whether a state is the new one
    for (const PowerCut& cut : cuts) {
      for (size_t variant = 0; variant < cut.images.size(); ++variant) {
        SCOPED_TRACE(fmt::format("power cut after {}, variant {}", cut.change, variant));
        const auto [state, is_unseen] = seen.try_emplace(DigestOf(cut.images[variant]));
        if (is_unseen) {
          const std::string path = dir_ / "after";
          WriteImage(cut.images[variant], path);
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
    auto store = Store::Open(path, OpenMode::kWrite, Observed());
    EXPECT_TRUE(IsOk(store));
    if (!store) return false;
    const auto found = LoadAllFrom(**store);
    EXPECT_TRUE(IsOk(found));
    if (!found) return false;
    EXPECT_TRUE(*found == before || *found == after);
    ExpectSound(**store);
    ExpectNoLeftovers(path);
    EXPECT_TRUE(IsOk(SaveSample(**store, MakeSample(50))));
    EXPECT_TRUE(IsOk((*store)->Close()));
    return *found == after;
  }

  std::string StorePath() const { return dir_ / "disk/store"; }

  // Nothing here needs a disk: the states are computed.
  ScopedTempDir dir_{FastDirectory()};
  SeededRandom random_;
};

TEST_F(PowerCutTest, LeavesAllStepsDuringAnOpenForWriting) {
  fs::create_directories(dir_ / "disk");
  CAIRN_ASSERT_OK_AND_ASSIGN(const Steps before, MakeHistory(StorePath()));
  for (const char* name :
       {"/segments/00000001-0123456789abcdef00000000.seg",
        "/tables/00000001-0123456789abcdef00000000.sst", "/roots/.0123456789abcdef.tmp"}) {
    std::ofstream(StorePath() + name) << "garbage";
  }
  std::unique_ptr<Store> store;
  const auto cuts = Record([&]() -> Result<void> {
    CAIRN_TRY_ASSIGN(store, Store::Open(StorePath(), OpenMode::kWrite, Observed()));
    return {};
  });
  CAIRN_ASSERT_OK(store->Close());
  ExpectOldOrNew(cuts, before, before);
}

// A commit of so high a number that it removes a root. It writes the hint without a sync.
TEST_F(PowerCutTest, LeavesOldOrNewStateWhenOldRootsAreRemoved) {
  constexpr SampleShape kTiny{.tensor_count = 1, .largest_bytes = 1};
  fs::create_directories(dir_ / "disk");
  std::unique_ptr<Store> store;
  CAIRN_ASSERT_OK_AND_ASSIGN(store, Store::Open(StorePath(), OpenMode::kWrite, Observed()));
  for (uint64_t root = 2; root <= 79; ++root) {
    CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(1, root, kTiny), /*overwrite=*/true));
  }
  const Steps before{{1, MakeSample(1, 79, kTiny)}}, after{{1, MakeSample(1, 80, kTiny)}};
  const auto cuts =
      Record([&] { return WithoutValue(SaveSample(*store, after.at(1), /*overwrite=*/true)); });
  EXPECT_TRUE(std::ranges::any_of(cuts.back().images[0], [](const auto& file) {
    return file.first == "/store/hint" &&
           file.second->bytes.starts_with("root 00000000000000000080\n");
  }));
  CAIRN_ASSERT_OK(store->Close());
  ExpectOldOrNew(cuts, before, after);
}

TEST_F(PowerCutTest, LeavesAStoreThatCanBeRebuiltDuringARebuild) {
  fs::create_directories(dir_ / "disk");
  CAIRN_ASSERT_OK_AND_ASSIGN(const Steps steps, MakeHistory(StorePath()));
  fs::remove_all(StorePath() + "/roots");
  const auto cuts = Record([&] { return WithoutValue(Store::Rebuild(StorePath())); });
  std::set<uint64_t> seen;
  for (const PowerCut& cut : cuts) {
    for (const DiskImage& image : cut.images) {
      if (!seen.insert(DigestOf(image)).second) continue;
      SCOPED_TRACE("power cut after " + cut.change);
      WriteImage(image, dir_ / "after");
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
    CAIRN_TRY_ASSIGN(const auto store, Store::Open(StorePath(), OpenMode::kWrite, Observed()));
    CAIRN_TRY(SaveSample(*store, MakeSample(1)));
    return store->Close();
  });
  ExpectOldOrNew(cuts, {}, {{1, MakeSample(1)}});
}

}  // namespace
}  // namespace cairn::kv
