// What Rebuild recovers, and what it refuses.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <set>
#include <span>
#include <utility>

#include "kv/base/key.h"
#include "kv/base/options.h"
#include "kv/read/snapshot.h"
#include "kv/root/internal/kv_records.h"
#include "kv/root/internal/root_log.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/open/open_storage.h"
#include "kv/store.h"
#include "kv/table/internal/table_writer.h"
#include "tests/kv/root/hooked_storage.h"
#include "tests/kv/sample_step.h"
#include "tests/kv/store_checks.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::kv {
namespace {

using cairn::testing::HasHint;
using cairn::testing::IsError;
using cairn::testing::ScopedTempDir;
using ::testing::AllOf;
using ::testing::IsEmpty;
using ::testing::Not;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

class RebuildTest : public ::testing::Test {
 protected:
  void SetUp() override {
    CAIRN_ASSERT_OK_AND_ASSIGN(storage_, OpenStorage(path_));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, OpenWriter());
    for (const uint64_t step : {1, 2, 3}) {
      CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo info, SaveSample(*store, MakeSample(step)));
      generations_.insert(info.generation);
      steps_[step] = MakeSample(step);
    }
  }
  Result<std::unique_ptr<Store>> OpenWriter() {
    return Store::Open(path_, OpenMode::kWrite, {.grace = std::chrono::milliseconds(0)});
  }
  std::string NewestRootName() {
    return internal::RootName(internal::FindNewest(*storage_).value()->number);
  }
  void ExpectSteps() {
    kv::testing::ExpectSteps(path_, steps_);
    ExpectSound(path_);
  }

  ScopedTempDir dir_{std::filesystem::exists("/dev/shm") ? "/dev/shm" : ""};
  const std::string path_ = dir_ / "store";
  std::shared_ptr<Storage> storage_;
  Steps steps_;
  std::set<uint64_t> generations_;
};

TEST_F(RebuildTest, StoreThatOpensIsLeftAsItIs) {
  const std::string newest = NewestRootName();
  EXPECT_THAT(Store::Rebuild(path_), IsError(ErrorCode::kFailedPrecondition, "nothing to rebuild"));
  EXPECT_EQ(NewestRootName(), newest);
}

TEST_F(RebuildTest, StoreWithAWriterIsRefused) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, OpenWriter());
  EXPECT_THAT(Store::Rebuild(path_), IsError(ErrorCode::kConflict, "open for writing"));
}

// It is paused until another rebuild and many commits have made its numbers free again.
TEST(PausedRebuildTest, PutsNoRootsAmongThoseThatWereRemoved) {
  const auto storage = std::make_shared<HookedStorage>();
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(storage, OpenMode::kWrite));
    for (const uint64_t step : {1, 2}) CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(step)));
  }
  CAIRN_ASSERT_OK(storage->Put(internal::RootName(3), std::as_bytes(std::span("damage"))));
  bool has_begun = false;
  storage->on_put_if_absent = [&](std::string_view name, auto bytes) -> Result<void> {
    if (name.starts_with(internal::kRootFolder) && !std::exchange(has_begun, true)) {
      CAIRN_TRY(Store::Rebuild(storage));
      CAIRN_TRY_ASSIGN(const auto store, Store::Open(storage, OpenMode::kWrite));
      for (int i = 0; i < 80; ++i) CAIRN_TRY(store->SetCompression(i % 2 == 0));
    }
    return storage->base().PutIfAbsent(name, bytes);
  };
  EXPECT_THAT(Store::Rebuild(storage), IsError(ErrorCode::kConflict, "during the rebuild"));
  for (const uint64_t number : {4, 5}) {
    EXPECT_THAT(storage->Size(internal::RootName(number)), IsError(ErrorCode::kNotFound, ""));
  }
  CAIRN_EXPECT_OK(Store::Open(storage, OpenMode::kWrite));
}

TEST_F(RebuildTest, AbsentStoreIsNotFound) {
  EXPECT_THAT(Store::Rebuild(dir_ / "none"), IsError(ErrorCode::kNotFound, ""));
}

TEST_F(RebuildTest, AllStepsAreRecoveredWithoutRoots) {
  std::filesystem::remove_all(path_ + "/roots");
  EXPECT_THAT(Store::Open(path_, OpenMode::kRead),
              AllOf(IsError(ErrorCode::kDataLoss, "roots"), HasHint(Hint::kRebuild)));
  EXPECT_THAT(OpenWriter(), AllOf(IsError(ErrorCode::kDataLoss, "roots"), HasHint(Hint::kRebuild)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const RebuildReport report, Store::Rebuild(path_));
  EXPECT_EQ(report.steps, 3u);
  EXPECT_THAT(report.lost, IsEmpty());
  EXPECT_EQ(report.notes.size(), 4u);
  ExpectSteps();
}

TEST_F(RebuildTest, LossOfTheNewestRootIsNoticedAndRepaired) {
  const std::string newest = NewestRootName();
  CAIRN_ASSERT_OK(storage_->Remove(newest));
  for (const OpenMode mode : {OpenMode::kRead, OpenMode::kWrite}) {
    EXPECT_THAT(Store::Open(path_, mode),
                AllOf(IsError(ErrorCode::kDataLoss, newest), HasHint(Hint::kRebuild)));
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const RebuildReport report, Store::Rebuild(path_));
  EXPECT_THAT(report.lost, IsEmpty());
  ExpectSteps();
  EXPECT_THAT(Store::Rebuild(path_), IsError(ErrorCode::kFailedPrecondition, "nothing to rebuild"));
}

// A store without tables and segments could be taken for one that was just created.
TEST_F(RebuildTest, LossOfAllRootsOfAnEmptyStoreIsNoticed) {
  const std::string empty = dir_ / "empty";
  CAIRN_ASSERT_OK(Store::Open(empty, OpenMode::kWrite));
  std::filesystem::remove_all(empty + "/roots");
  EXPECT_THAT(Store::Open(empty, OpenMode::kWrite),
              AllOf(IsError(ErrorCode::kDataLoss, "all roots"), HasHint(Hint::kRebuild)));
}

TEST_F(RebuildTest, StepsAfterTheNewestRootThatCanBeReadAreRecovered) {
  const std::string newest = NewestRootName();
  CAIRN_ASSERT_OK_AND_ASSIGN(auto bytes, storage_->Read(newest, 1 << 20));
  bytes[bytes.size() / 2] ^= std::byte{1};
  CAIRN_ASSERT_OK(storage_->Put(newest, bytes));
  EXPECT_THAT(Store::Open(path_, OpenMode::kRead), IsError(ErrorCode::kDataLoss, newest));
  CAIRN_ASSERT_OK_AND_ASSIGN(const RebuildReport report, Store::Rebuild(path_));
  EXPECT_EQ(report.steps, 3u);
  EXPECT_THAT(report.lost, IsEmpty());
  ASSERT_EQ(report.notes.size(), 2u);
  EXPECT_THAT(report.notes[0].file, ::testing::HasSubstr(newest));
  EXPECT_EQ(report.notes[1].step, 3u);
  ExpectSteps();
}

TEST_F(RebuildTest, StepWithAMissingSegmentIsDropped) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, ReadLatest(path_));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto segments, snapshot->Segments());
  for (const SegmentInfo& segment : segments) {
    if (segment.step == 2) {
      CAIRN_ASSERT_OK(storage_->Remove("segments/" + segment.name));
    }
  }
  std::filesystem::remove_all(path_ + "/roots");
  CAIRN_ASSERT_OK_AND_ASSIGN(const RebuildReport report, Store::Rebuild(path_));
  ASSERT_THAT(report.lost, Not(IsEmpty()));
  EXPECT_EQ(report.lost[0].step, 2u);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, LoadAll(path_));
  EXPECT_FALSE(steps.contains(2));
  EXPECT_TRUE(steps.at(1) == MakeSample(1));
}

// Snapshots find open steps by their generation, so two steps must never have the same.
TEST_F(RebuildTest, GenerationsAreNotAssignedAgain) {
  std::filesystem::remove_all(path_ + "/roots");
  CAIRN_ASSERT_OK(Store::Rebuild(path_));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, OpenWriter());
  for (const uint64_t step : {4, 5, 6}) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo info, SaveSample(*store, MakeSample(step)));
    EXPECT_TRUE(generations_.insert(info.generation).second) << info.generation;
    steps_[step] = MakeSample(step);
  }
  // All steps through one snapshot, which has all of them open.
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->Latest());
  for (const auto& [step, expected] : steps_) {
    ExpectSample(*snapshot, expected, step);
  }
}

// Roots and names that no writer gives, with correct checksums. The numbers after them would be 0.
class ForgedNumbersTest : public RebuildTest {
 protected:
  /// Puts a root with this number and epoch, and one before it.
  void ForgeRoots(uint64_t number, uint32_t epoch) {
    internal::Root root = **internal::FindNewest(*storage_);
    root.number = number - 1;
    Put(root, root.commit_id);
    root.number = number;
    root.epoch = epoch;
    Put(root, internal::NewUuid());
  }
  void Put(internal::Root& root, const internal::Uuid& commit_id) {
    root.predecessor = root.commit_id;
    root.commit_id = commit_id;
    (void)storage_->PutIfAbsent(internal::RootName(root.number), EncodeRoot(root).value());
  }
  /// Nothing that writes accepts the store, and all of it remains.
  void ExpectRefused(const std::string& object) {
    const auto before = ContentsOf(*storage_);
    EXPECT_THAT(OpenWriter(), IsError(ErrorCode::kDataLoss, object));
    EXPECT_THAT(Store::Rebuild(path_), IsError(ErrorCode::kDataLoss, object));
    EXPECT_EQ(ContentsOf(*storage_), before);
  }
};

TEST_F(ForgedNumbersTest, RootsWithNumbersOfNoStoreAreIgnored) {
  ForgeRoots(~uint64_t{0}, 1);
  CAIRN_ASSERT_OK(storage_->Remove(internal::kHintName));
  CAIRN_EXPECT_OK(OpenWriter());
  ExpectSteps();
}

TEST_F(ForgedNumbersTest, ARootWithTheLastNumberIsRefused) {
  ForgeRoots(internal::kMaxRootNumber, 1);
  CAIRN_ASSERT_OK(storage_->Remove(internal::kHintName));
  ExpectRefused(internal::RootName(internal::kMaxRootNumber));
}

TEST_F(ForgedNumbersTest, ARootWithTheLastEpochIsRefused) {
  const uint64_t number = (*internal::FindNewest(*storage_))->number;
  ForgeRoots(number + 1, ~uint32_t{0});
  ExpectRefused(internal::RootName(number + 1));
}

TEST_F(ForgedNumbersTest, ARootUnderTheNameOfAnotherIsNotTheNewest) {
  internal::Root root = **internal::FindNewest(*storage_);
  const std::string name = internal::RootName(root.number + 1);
  root.number = ~uint64_t{0};
  CAIRN_ASSERT_OK(storage_->Put(name, EncodeRoot(root).value()));
  CAIRN_ASSERT_OK_AND_ASSIGN(const RebuildReport report, Store::Rebuild(path_));
  EXPECT_THAT(report.lost, IsEmpty());
  ExpectSteps();
}

TEST_F(ForgedNumbersTest, ASegmentWithTheLastEpochIsRefused) {
  const std::string segment = "segments/ffffffff-000000000000000100000000.seg";
  CAIRN_ASSERT_OK(storage_->Put(segment, std::as_bytes(std::span("x"))));
  CAIRN_EXPECT_OK(OpenWriter()) << "nothing follows the epoch of a segment but a rebuild";
  std::filesystem::remove_all(path_ + "/roots");
  const auto before = ContentsOf(*storage_);
  EXPECT_THAT(Store::Rebuild(path_), IsError(ErrorCode::kDataLoss, segment));
  EXPECT_EQ(ContentsOf(*storage_), before);
}

TEST_F(ForgedNumbersTest, ATableOfTheLastRootIsLost) {
  const internal::ObjectId id{.epoch = 1, .id = 7};
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto table, internal::TableWriter::Create(*storage_, id));
  const StepInfo info{.step = 9, .generation = ~uint64_t{0}};
  CAIRN_ASSERT_OK(table->Add(TableKey(Column::kSteps, ""), internal::EncodeStep(info)));
  CAIRN_ASSERT_OK(table->Add(TableKey(Column::kTables, ""), internal::EncodeTables({})));
  CAIRN_ASSERT_OK(table->Finish());
  std::filesystem::remove_all(path_ + "/roots");
  CAIRN_ASSERT_OK_AND_ASSIGN(const RebuildReport report, Store::Rebuild(path_));
  ASSERT_EQ(report.lost.size(), 1u);
  EXPECT_THAT(report.lost[0].file,
              ::testing::HasSubstr(internal::ObjectName(internal::ObjectKind::kTable, id)));
  ExpectSteps();
}

}  // namespace
}  // namespace cairn::kv
