// What no step uses any more remains for the grace period, and not longer; nothing else is removed.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <set>

#include "kv/base/options.h"
#include "kv/compact.h"
#include "kv/read/snapshot.h"
#include "kv/root/internal/root_log.h"
#include "kv/state/internal/root_change.h"
#include "kv/state/internal/store_state.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/open/open_storage.h"
#include "kv/store.h"
#include "tests/kv/byte_payload.h"
#include "tests/kv/sample_step.h"
#include "tests/kv/store_checks.h"
#include "tests/support/fault_hook.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::kv {
namespace {

using cairn::testing::IsError;
using cairn::testing::ScopedTempDir;
using internal::FaultyStorage;
using internal::MemoryStorage;
using internal::NewObjectId;
using internal::ObjectKind;
using internal::ObjectName;
using internal::StorageCall;
using internal::StorageFault;
using internal::StoreAccess;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

using Names = std::set<std::string>;

class RemovalTest : public ::testing::Test {
 protected:
  void SetUp() override { CAIRN_ASSERT_OK_AND_ASSIGN(storage_, OpenStorage(path_)); }

  std::unique_ptr<Store> OpenWriter(std::chrono::milliseconds grace) {
    auto store = Store::Open(path_, OpenMode::kWrite, {.grace = grace});
    EXPECT_TRUE(cairn::testing::IsOk(store));
    return store ? *std::move(store) : nullptr;
  }
  /// Returns the names of all segments, tables and pages.
  Names Objects() {
    Names objects;
    for (const char* folder : {"segments/", "tables/", "pages/"}) {
      const auto names = storage_->List(folder);
      EXPECT_TRUE(cairn::testing::IsOk(names));
      objects.insert(names->begin(), names->end());
    }
    return objects;
  }
  /// Returns the names of the objects that wait for their removal.
  Names Removed() {
    const auto root = internal::FindNewest(*storage_);
    EXPECT_TRUE(cairn::testing::IsOk(root));
    Names names;
    for (const internal::RemovedObject& object : (*root)->removed) names.insert(object.name);
    return names;
  }
  void ExpectOnlySteps(const Steps& expected) {
    ExpectSteps(path_, expected);
    ExpectNoLeftovers(path_);
  }
  void PutObject(const std::string& name) {
    CAIRN_ASSERT_OK(storage_->Put(name, RandomBytes(1, 100)));
  }

  static constexpr std::chrono::milliseconds kNoGrace{0};
  static constexpr std::chrono::milliseconds kLong{3'600'000};
  ScopedTempDir dir_{std::filesystem::exists("/dev/shm") ? "/dev/shm" : ""};
  const std::string path_ = dir_ / "store";
  std::shared_ptr<Storage> storage_;
};

// A writer whose clock was ahead by years has deleted a step.
TEST_F(RemovalTest, TimesFarInTheFutureAreBounded) {
  {
    const auto store = OpenWriter(kLong);
    CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(1)));
    CAIRN_ASSERT_OK(store->Delete(std::array<uint64_t, 1>{1}));
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto last, internal::FindNewest(*storage_));
  internal::Root ahead = internal::Successor(*last, internal::kAnnouncedFor);
  ASSERT_THAT(ahead.removed, Not(IsEmpty()));
  for (auto& object : ahead.removed) object.since_unix_ns += 300'000'000'000'000'000;
  ASSERT_EQ(internal::CommitRoot(*storage_, ahead).state,
            internal::CommitOutcome::State::kCommitted);
  const auto store = OpenWriter(kLong);
  const Names of_step = Removed();
  EXPECT_EQ(of_step.size(), ahead.removed.size());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto root, internal::FindNewest(*storage_));
  for (const auto& object : root->removed) {
    EXPECT_EQ(object.since_unix_ns,
              root->created_unix_ns + std::chrono::nanoseconds(internal::kAnnouncedFor).count());
  }
}

TEST_F(RemovalTest, DuringTheGracePeriodObjectsAreListedAndRemain) {
  const auto store = OpenWriter(kLong);
  CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(1)));
  const Names of_step = Objects();
  CAIRN_ASSERT_OK(store->Delete(std::array<uint64_t, 1>{1}));
  EXPECT_EQ(Objects(), of_step);
  EXPECT_EQ(Removed(), of_step);
  CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(2)));
  EXPECT_EQ(Removed(), of_step) << "forgotten by the next commit";
  EXPECT_THAT(Objects(), IsSupersetOf(of_step));
  ExpectOnlySteps({{2, MakeSample(2)}});
}

TEST_F(RemovalTest, NextOpenForWritingRemovesWhatHasExpired) {
  {
    const auto store = OpenWriter(kLong);
    CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(1)));
    CAIRN_ASSERT_OK(store->Delete(std::array<uint64_t, 1>{1}));
    EXPECT_THAT(Objects(), Not(IsEmpty()));
  }
  {
    const auto store = OpenWriter(kLong);
    EXPECT_THAT(Objects(), Not(IsEmpty())) << "the sweep removed what waits for its removal";
    EXPECT_THAT(Removed(), Not(IsEmpty()));
  }
  const auto store = OpenWriter(kNoGrace);
  EXPECT_THAT(Objects(), IsEmpty());
  CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(2)));
  EXPECT_THAT(Removed(), IsEmpty());
}

TEST_F(RemovalTest, WhatWaitsIsRemovedAtOnceIfAskedAfterARootThatDoesNotListIt) {
  const auto store = OpenWriter(kLong);
  for (const uint64_t step : {1, 2}) CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(step)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto deleted, store->Delete(std::array<uint64_t, 1>{2}));
  ASSERT_GT(deleted.waiting_bytes, 0u);
  CAIRN_ASSERT_OK_AND_ASSIGN(const uint64_t removed_bytes, store->RemoveWaiting());
  EXPECT_EQ(removed_bytes, deleted.waiting_bytes);
  EXPECT_THAT(Removed(), IsEmpty());
  ExpectOnlySteps({{1, MakeSample(1)}});
  CAIRN_ASSERT_OK_AND_ASSIGN(const uint64_t rest_bytes, store->RemoveWaiting());
  EXPECT_EQ(rest_bytes, 0u);
}

TEST_F(RemovalTest, ReportsCountNothingThatDoesNotExistAnyMore) {
  {
    const auto store = OpenWriter(kLong);
    for (const uint64_t step : {1, 2, 3}) CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(step)));
    CAIRN_ASSERT_OK(store->Delete(std::array<uint64_t, 1>{2}));
  }
  uint64_t freed_bytes = 0;
  {
    const auto store = OpenWriter(kNoGrace);  // removes it, and commits no root that states so
    EXPECT_THAT(Removed(), Not(IsEmpty()));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto none, store->Delete({}));
    EXPECT_EQ(none.waiting_bytes, 0u);
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto plan, store->Delete(std::array<uint64_t, 1>{3}, true));
    freed_bytes = plan.freed_bytes;
    EXPECT_GT(freed_bytes, 0u);
  }
  const auto store = OpenWriter(kLong);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto deleted, store->Delete(std::array<uint64_t, 1>{3}));
  EXPECT_EQ(deleted.freed_bytes, 0u);
  EXPECT_EQ(deleted.waiting_bytes, freed_bytes);
}

TEST_F(RemovalTest, DeleteWithoutStepsFreesNothing) {
  const auto store = OpenWriter(kLong);
  CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(1)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto deleted, store->Delete(std::array<uint64_t, 1>{1}));
  StoreAccess::StateOf(*store).options.grace = kNoGrace;  // as if the period had passed
  const Names objects = Objects();
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto none, store->Delete({}));
  EXPECT_EQ(none.freed_bytes, 0u);
  EXPECT_EQ(none.waiting_bytes, deleted.waiting_bytes);
  EXPECT_EQ(Objects(), objects);
}

TEST_F(RemovalTest, DryRunChangesNothingAndNeedsNoRightToWrite) {
  const auto store = OpenWriter(kLong);
  for (const uint64_t step : {1, 2}) CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(step)));
  CAIRN_ASSERT_OK(store->Delete(std::array<uint64_t, 1>{1}));
  const auto before = ContentsOf(*storage_);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader,
                             Store::Open(path_, OpenMode::kRead, {.grace = kNoGrace}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto plan, reader->Delete(std::array<uint64_t, 1>{2}, true));
  EXPECT_EQ(plan.waiting_bytes, 0u);
  CAIRN_ASSERT_OK(Compact(*reader, {.max_dead = 0, .dry_run = true}));
  EXPECT_TRUE(ContentsOf(*storage_) == before);
  EXPECT_THAT(reader->Delete(std::array<uint64_t, 1>{2}),
              IsError(ErrorCode::kFailedPrecondition, "open it for writing to delete"));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto deleted, store->Delete(std::array<uint64_t, 1>{2}));
  EXPECT_EQ(plan.freed_bytes, deleted.waiting_bytes);
}

TEST_F(RemovalTest, NextCommitRemovesWhatHasExpired) {
  const auto store = OpenWriter(kLong);
  CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(1)));
  const Names of_step = Objects();
  CAIRN_ASSERT_OK(store->Delete(std::array<uint64_t, 1>{1}));
  EXPECT_EQ(Objects(), of_step);
  StoreAccess::StateOf(*store).options.grace = kNoGrace;  // as if the period had passed
  CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(2)));
  for (const std::string& name : Objects()) EXPECT_FALSE(of_step.contains(name)) << name;
  ExpectOnlySteps({{2, MakeSample(2)}});
}

TEST_F(RemovalTest, ReaderKeepsADeletedStepDuringTheGracePeriodAndNotAfterIt) {
  auto writer = OpenWriter(kLong);
  for (const uint64_t step : {1, 2}) CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(step)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader, Store::Open(path_, OpenMode::kRead));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, reader->Latest());
  CAIRN_ASSERT_OK(writer->Delete(std::array<uint64_t, 1>{2}));

  // The reader had not opened any object of the step before it was deleted.
  ExpectSample(*snapshot, MakeSample(2), 2);
  ExpectSound(*snapshot);

  CAIRN_ASSERT_OK_AND_ASSIGN(const auto late, ReadLatest(path_));
  writer.reset();
  writer = OpenWriter(kNoGrace);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto now, reader->Latest());
  EXPECT_THAT(LoadSample(*now, 2), IsError(ErrorCode::kNotFound, "no such step"));
  CAIRN_EXPECT_OK(LoadSample(*late, 1));
}

TEST_F(RemovalTest, ReaderThatIsTooLateGetsNotFound) {
  auto writer = OpenWriter(kNoGrace);
  for (const uint64_t step : {1, 2}) CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(step)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, ReadLatest(path_));
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo two, snapshot->FindStep(2));
  CAIRN_ASSERT_OK(writer->Delete(std::array<uint64_t, 1>{2}));

  constexpr char kWhy[] = "deleted while it was being read, and its grace period has passed";
  EXPECT_THAT(LoadSample(*snapshot, 2), IsError(ErrorCode::kNotFound, kWhy));
  EXPECT_THAT(snapshot->Get(Column::kTensors, two, FqnKey("w001")),
              IsError(ErrorCode::kNotFound, kWhy));
  EXPECT_THAT(snapshot->GetStructure(two), IsError(ErrorCode::kNotFound, kWhy));
  CAIRN_EXPECT_OK(LoadSample(*snapshot, 1));
  // Verification explains what is missing too, and checks the rest.
  ExpectSound(*snapshot);
}

TEST_F(RemovalTest, ReaderThatOpenedTheTablesGetsNotFoundForTheSegments) {
  const auto writer = OpenWriter(kNoGrace);
  CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(1)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, ReadLatest(path_));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto info, snapshot->FindStep(1));
  CAIRN_ASSERT_OK(snapshot->GetStructure(info));
  CAIRN_ASSERT_OK(writer->Delete(std::array<uint64_t, 1>{1}));
  EXPECT_THAT(LoadSample(*snapshot, 1), IsError(ErrorCode::kNotFound, "deleted while"));
}

// Whether the step was deleted is in the newest root. It was reported as damage if that could not
// be read.
TEST_F(RemovalTest, MissingObjectIsNotDamageIfTheNewestRootCannotBeRead) {
  const auto faulty = std::make_shared<FaultyStorage>(std::make_shared<MemoryStorage>("test"));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer,
                             Store::Open(faulty, OpenMode::kWrite, {.grace = kNoGrace}));
  CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(1)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, ReadLatest(faulty));
  CAIRN_ASSERT_OK(writer->Delete(std::array<uint64_t, 1>{1}));
  faulty->SetPlan([](const StorageCall& call) {
    return call.name.starts_with("roots/") ? StorageFault::kRefuse : StorageFault::kNone;
  });
  EXPECT_THAT(LoadSample(*snapshot, 1), IsError(ErrorCode::kUnavailable, "it is unknown whether"));
  faulty->SetPlan({});
  EXPECT_THAT(LoadSample(*snapshot, 1), IsError(ErrorCode::kNotFound, "deleted while"));
}

TEST_F(RemovalTest, OverwriteKeepsTheOldStepForItsReaders) {
  const auto writer = OpenWriter(kLong);
  CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(1, 0)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader, Store::Open(path_, OpenMode::kRead));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto before, reader->Latest());
  CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(1, 1), /*overwrite=*/true));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto after, reader->Latest());
  ExpectSample(*before, MakeSample(1, 0), 1);
  ExpectSample(*after, MakeSample(1, 1), 1);
  ExpectOnlySteps({{1, MakeSample(1, 1)}});
}

TEST_F(RemovalTest, OverwriteWithoutGraceLeavesNotFoundOrTheOldStep) {
  const auto writer = OpenWriter(kNoGrace);
  const SampleShape small{.tensor_count = 3, .largest_bytes = 5'000};
  SampleStep other = MakeSample(1, 1, small);
  other.tensors["w001"] = RandomBytes(99, 700);  // nothing in common
  CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(1, 0, small)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto before, ReadLatest(path_));
  CAIRN_ASSERT_OK(SaveSample(*writer, other, /*overwrite=*/true));
  EXPECT_THAT(LoadSample(*before, 1), IsError(ErrorCode::kNotFound, "deleted while"));
  ExpectOnlySteps({{1, other}});
}

TEST_F(RemovalTest, NextOpenForWritingRemovesWhatACrashedAttemptLeft) {
  {
    const auto writer = OpenWriter(kLong);
    CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(1)));
  }
  // The epochs of earlier writers.
  for (const uint32_t epoch : {0u, 1u}) {
    for (const ObjectKind kind : {ObjectKind::kSegment, ObjectKind::kTable, ObjectKind::kPage}) {
      PutObject(ObjectName(kind, NewObjectId(epoch)));
    }
  }
  PutObject("pending/00000001123456780000000000000000-2-0/1.part");
  PutObject("leases/00000001123456780000000000000000");
  {
    const auto reader = Store::Open(path_, OpenMode::kRead);
    CAIRN_ASSERT_OK(reader);
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto leftovers, FindLeftovers(path_));
    EXPECT_EQ(leftovers.size(), 7u) << "a reader removed something";
  }
  const auto writer = OpenWriter(kLong);
  ExpectOnlySteps({{1, MakeSample(1)}});
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto leases, storage_->List("leases/"));
  EXPECT_THAT(leases, ::testing::ElementsAre("leases/" + writer->session()));
}

// A writer that was paused must not remove what its successor writes.
TEST_F(RemovalTest, SweepNeverTouchesNewerEpochsOrUnknownNames) {
  const auto first = OpenWriter(kNoGrace);
  std::vector<std::string> kept;
  const uint32_t own = StoreAccess::StateOf(*first).epoch;
  for (const uint32_t epoch : {own + 1, own + 2, own + 900}) {
    for (const ObjectKind kind : {ObjectKind::kSegment, ObjectKind::kTable, ObjectKind::kPage}) {
      kept.push_back(ObjectName(kind, NewObjectId(epoch)));
    }
  }
  kept.push_back(fmt::format("pending/{:08x}123456780000000000000000-2-0/1.part", own + 900));
  kept.push_back("segments/notes.txt");
  for (const std::string& name : kept) PutObject(name);
  CAIRN_ASSERT_OK(first->Close());
  const auto second = OpenWriter(kNoGrace);  // of the next epoch
  for (const std::string& name : kept) EXPECT_TRUE(*ObjectExists(*storage_, name)) << name;
}

// The storage answers each request in time, but there are too many. The next open continues.
TEST_F(RemovalTest, SweepEndsAtItsDeadline) {
  CAIRN_ASSERT_OK(OpenWriter(kLong)->Close());
  PutObject(ObjectName(ObjectKind::kSegment, NewObjectId(0)));
  const auto garbage = Objects();
  const auto faulty = std::make_shared<FaultyStorage>(storage_);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, Store::Open(faulty, OpenMode::kWrite));
  EXPECT_THAT(Objects(), IsEmpty());
  for (const std::string& name : garbage) PutObject(name);
  const auto call_count = faulty->Log().size();
  Sweep(StoreAccess::StateOf(*writer), /*limit=*/std::chrono::seconds(0));
  EXPECT_EQ(faulty->Log().size(), call_count);
  EXPECT_EQ(Objects(), garbage);
  Sweep(StoreAccess::StateOf(*writer));
  EXPECT_THAT(Objects(), IsEmpty());
}

TEST_F(RemovalTest, SweepRemovesNothingIfAPageCannotBeRead) {
  const SampleShape tiny{.tensor_count = 2, .largest_bytes = 300};
  {
    const auto writer = OpenWriter(kLong);
    for (uint64_t step = 0; step < 70; ++step) {
      CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(step, 0, tiny)));
    }
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto pages, storage_->List("pages/"));
  ASSERT_EQ(pages.size(), 1u);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto bytes, storage_->Read(pages[0], 1 << 30));
  CAIRN_ASSERT_OK(storage_->Remove(pages[0]));
  const Names before = Objects();
  {
    const auto writer = OpenWriter(kLong);
  }
  EXPECT_EQ(Objects(), before);
  CAIRN_ASSERT_OK(storage_->Put(pages[0], bytes));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, LoadAll(path_));
  EXPECT_EQ(steps.size(), 70u);
}

TEST_F(RemovalTest, EveryFailedRemovalIsMadeUpForByTheNextOpen) {
  for (uint32_t n = 1;; ++n) {
    ScopedTempDir dir(dir_.path());
    const std::string path = dir / "store";
    CAIRN_ASSERT_OK_AND_ASSIGN(auto writer,
                               Store::Open(path, OpenMode::kWrite, {.grace = kNoGrace}));
    for (const uint64_t step : {1, 2}) CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(step)));
    uint32_t removals = 0;
    bool fired = false;
    {
      cairn::testing::ScopedFaults faults([&](const cairn::testing::FaultPass& pass, uint32_t) {
        if (!pass.point.ends_with(".remove") || ++removals != n) return 0;
        fired = true;
        return EIO;
      });
      CAIRN_ASSERT_OK(writer->Delete(std::array<uint64_t, 1>{2})) << "the commit has happened";
    }
    writer.reset();
    CAIRN_ASSERT_OK_AND_ASSIGN(writer, Store::Open(path, OpenMode::kWrite, {.grace = kNoGrace}));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto leftovers, FindLeftovers(path));
    EXPECT_THAT(leftovers, IsEmpty()) << "after removal " << n;
    ExpectSteps(path, Steps{{1, MakeSample(1)}});
    if (!fired) break;
  }
}

}  // namespace
}  // namespace cairn::kv
