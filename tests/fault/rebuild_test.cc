// Goal: if roots are lost, every open reports it, or finds the complete state of an earlier commit;
// and Store::Rebuild restores all steps whose tables and segments are there. A writer that opens a
// damaged store destroys nothing that Rebuild could restore.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "kv/base/options.h"
#include "kv/read/snapshot.h"
#include "kv/store.h"
#include "tests/fault/operations.h"
#include "tests/kv/store_checks.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"
#include "tests/support/seeded_random.h"

namespace cairn::kv {
namespace {

using cairn::testing::IsError;
using cairn::testing::IsOk;
using cairn::testing::ReadText;
using cairn::testing::ScopedTempDir;
using cairn::testing::SeededRandom;
using cairn::testing::WriteText;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)
namespace fs = std::filesystem;

constexpr SampleShape kShape{.tensor_count = 4, .largest_bytes = 30'000};

/// Checks that each of the steps is what was saved, or damaged. Returns how many are damaged, or
/// absent if that is allowed.
uint64_t ExpectTruthOrDataLoss(const Store& store, const Steps& steps, bool may_be_absent = false) {
  const auto snapshot = store.Latest();
  EXPECT_TRUE(IsOk(snapshot));
  uint64_t lost = 0;
  for (const auto& [step, sample] : steps) {
    const auto loaded = LoadSample(**snapshot, step);
    if (loaded) {
      EXPECT_TRUE(*loaded == sample) << "step " << step;
      continue;
    }
    ++lost;
    const Error& error = loaded.error();
    if (may_be_absent && error.code == ErrorCode::kNotFound) continue;
    EXPECT_EQ(error.code, ErrorCode::kDataLoss) << error.ToString();
    EXPECT_THAT(error.file, Not(IsEmpty())) << error.ToString();
  }
  return lost;
}

class LostRootTest : public ::testing::Test {
 protected:
  /// Commits of which the last ones are, from the newest: save 5, delete 1, overwrite 2, save 4.
  void SetUp() override {
    const auto store = Store::Open(path_, OpenMode::kWrite, SmallBlocks());
    ASSERT_TRUE(IsOk(store));
    for (const uint64_t step : {1, 2, 3, 4}) Save(**store, step, 0);
    Save(**store, 2, 1);
    ASSERT_TRUE(IsOk((*store)->Delete(std::array<uint64_t, 1>{1})));
    steps_.erase(1);
    states_.push_back(steps_);
    Save(**store, 5, 0);
    ASSERT_TRUE(IsOk((*store)->Close()));
  }

  void Save(Store& store, uint64_t step, uint64_t version) {
    steps_[step] = MakeSample(step, version, kShape);
    ASSERT_TRUE(IsOk(SaveSample(store, steps_[step], /*overwrite=*/version > 0)));
    states_.push_back(steps_);
  }

  /// The paths of the roots, the newest first.
  std::vector<std::string> Roots(const std::string& path) const {
    std::vector<std::string> roots;
    for (const auto& entry : fs::directory_iterator(path + "/roots")) {
      roots.push_back(entry.path());
    }
    std::ranges::sort(roots);
    return roots;
  }

  std::string Copy() {
    const std::string copy = dir_ / "copy";
    fs::remove_all(copy);
    fs::copy(path_, copy, fs::copy_options::recursive);
    return copy;
  }

  /// Rebuilds and checks that exactly the steps that exist, and perhaps deleted ones, are there.
  void ExpectRebuilt(const std::string& path) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto report, Store::Rebuild(path));
    // Step 1 was deleted after the newest root that can be read.
    for (const Error& lost : report.lost) EXPECT_EQ(lost.step, 1u) << lost.ToString();
    for (const Error& note : report.notes) {
      EXPECT_TRUE(note.step || note.file.find("/roots/") != std::string::npos) << note.ToString();
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(Steps rebuilt, LoadAll(path));
    EXPECT_EQ(rebuilt.size(), report.steps);
    rebuilt.erase(1);  // a restored step is better than a lost one
    EXPECT_TRUE(rebuilt == steps_);
    EXPECT_THAT(Store::Rebuild(path),
                IsError(ErrorCode::kFailedPrecondition, "nothing to rebuild"));
    ExpectUsable(path);
  }

  void ExpectUsable(const std::string& path) {
    {
      CAIRN_ASSERT_OK_AND_ASSIGN(const auto store,
                                 Store::Open(path, OpenMode::kWrite, SmallBlocks()));
      CAIRN_EXPECT_OK(SaveSample(*store, MakeSample(9, 0, kShape)));
      CAIRN_EXPECT_OK(store->Delete(std::array<uint64_t, 1>{3}));
      ExpectSound(*store);
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(Steps now, LoadAll(path));
    now.erase(1);
    Steps expected = steps_;
    expected.erase(3);
    expected[9] = MakeSample(9, 0, kShape);
    EXPECT_TRUE(now == expected);
  }

  ScopedTempDir dir_{fs::exists("/dev/shm") ? "/dev/shm" : ""};
  const std::string path_ = dir_ / "store";
  Steps steps_;
  std::vector<Steps> states_;  // after each commit
};

// A cut of the newest root never makes an older state appear, such as one with a deleted step.
TEST_F(LostRootTest, NoCutOfTheNewestRootDropsACommitSilently) {
  SeededRandom random;
  fmt::print("CAIRN_TEST_SEED={}\n", random.seed());
  for (size_t damaged = 1; damaged <= 3; ++damaged) {
    const std::string whole = ReadText(Roots(path_)[damaged - 1]);
    for (int i = 0; i < 12; ++i) {
      const std::string copy = Copy();
      const uint64_t kept = i == 0 ? 0 : random.Between(1, whole.size() - 1);
      SCOPED_TRACE(fmt::format("the newest {} roots are cut, the last to {} bytes", damaged, kept));
      for (size_t n = 0; n < damaged; ++n) {
        const std::string root = Roots(copy)[n];
        fs::resize_file(root, n + 1 == damaged ? kept : fs::file_size(root) / 2);
      }
      const std::string newest = fs::path(Roots(copy)[0]).filename();
      EXPECT_THAT(Store::Open(copy, OpenMode::kRead), IsError(ErrorCode::kDataLoss, newest));
      EXPECT_THAT(Store::Open(copy, OpenMode::kWrite, SmallBlocks()),
                  IsError(ErrorCode::kDataLoss, newest));
      ExpectRebuilt(copy);
      if (HasFailure()) return;
    }
  }
}

// Without the hint, a missing root cannot be told from one that was never put. The state is then
// that of the commit before, complete, or the open reports the objects that later commits have
// removed.
TEST_F(LostRootTest, DeletedNewestRootsAreNoticedByTheHintAlone) {
  for (size_t lost = 1; lost < states_.size(); ++lost) {
    SCOPED_TRACE(fmt::format("the newest {} roots deleted", lost));
    const std::string copy = Copy();
    for (size_t n = 0; n < lost; ++n) fs::remove(Roots(copy)[0]);
    const Steps& state = states_[states_.size() - 1 - lost];
    EXPECT_THAT(Store::Open(copy, OpenMode::kRead), IsError(ErrorCode::kDataLoss, "was committed"));
    fs::remove(copy + "/hint");
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader, Store::Open(copy, OpenMode::kRead));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, reader->Latest());
    EXPECT_EQ(snapshot->step_numbers().size(), state.size());
    (void)ExpectTruthOrDataLoss(*reader, state);
  }
}

TEST_F(LostRootTest, RootWithoutItsPredecessorIsRefusedAndRebuilt) {
  const std::string copy = Copy();
  fs::remove(Roots(copy)[1]);
  const auto reader = Store::Open(copy, OpenMode::kRead);
  ASSERT_FALSE(reader);
  EXPECT_THAT(reader.error().message, HasSubstr("predecessor"));
  ExpectRebuilt(copy);
}

TEST_F(LostRootTest, StoreWhoseRootsAreAllDamagedIsRebuiltFromItsTables) {
  const std::string copy = Copy();
  for (const std::string& root : Roots(copy)) WriteText(root, "garbage");
  EXPECT_THAT(Store::Open(copy, OpenMode::kRead), IsError(ErrorCode::kDataLoss, "roots/"));
  ExpectRebuilt(copy);
}

// Rebuild never presents wrong bytes, and reports each step that it cannot restore.
TEST_F(LostRootTest, RebuildReportsTheStepsOfADamagedTableAndRestoresTheOthers) {
  uint64_t lost = 0;
  for (const auto& entry : fs::directory_iterator(path_ + "/tables")) {
    const std::string copy = Copy();
    const std::string table = copy + "/tables/" + entry.path().filename().string();
    std::string text = ReadText(table);
    text[text.size() / 2] ^= 1;
    WriteText(table, text);
    fs::remove_all(copy + "/roots");
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto report, Store::Rebuild(copy));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(copy, OpenMode::kRead));
    EXPECT_FALSE(report.lost.empty());
    lost += ExpectTruthOrDataLoss(*store, steps_, /*may_be_absent=*/true);
  }
  EXPECT_GT(lost, 0u);
}

// Whatever the damage of roots or tables is: if a writer opens the store, saves and closes it, all
// steps are there, or Rebuild restores all those whose tables are whole; and no load returns other
// bytes than those that were saved.
TEST_F(LostRootTest, WriterOnADamagedStoreDestroysNothing) {
  SeededRandom random;
  fmt::print("CAIRN_TEST_SEED={}\n", random.seed());
  uint64_t opened = 0, refused = 0;
  for (const char* folder : {"roots", "tables"}) {
    for (const auto& entry : fs::directory_iterator(path_ + "/" + folder)) {
      const std::string copy = Copy();
      const std::string file =
          fmt::format("{}/{}/{}", copy, folder, entry.path().filename().string());
      std::string text = ReadText(file);
      const std::string whole = text;
      text[random.Between(0, text.size() - 1)] ^= static_cast<char>(1 << random.Between(0, 7));
      WriteText(file, text);
      SCOPED_TRACE(file);
      Steps expected = steps_;
      if (auto writer = Store::Open(copy, OpenMode::kWrite, SmallBlocks())) {
        ++opened;
        (void)ExpectTruthOrDataLoss(**writer, expected);
        if (SaveSample(**writer, MakeSample(9, 0, kShape))) expected[9] = MakeSample(9, 0, kShape);
      } else {
        ++refused;
        EXPECT_EQ(writer.error().code, ErrorCode::kDataLoss) << writer.error().ToString();
      }
      if (std::string_view(folder) == "roots") {
        const auto report = Store::Rebuild(copy);
        if (!report) {
          EXPECT_THAT(report, IsError(ErrorCode::kFailedPrecondition, "nothing to rebuild"));
        }
      } else if (fs::exists(file)) {
        WriteText(file, whole);  // repaired
      }
      CAIRN_ASSERT_OK_AND_ASSIGN(Steps now, LoadAll(copy));
      now.erase(1);
      EXPECT_TRUE(now == expected);
      if (HasFailure()) return;
    }
  }
  fmt::print("{} damaged stores opened for writing, {} refused\n", opened, refused);
}

}  // namespace
}  // namespace cairn::kv
