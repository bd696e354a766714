// Goal: a copy has the bytes, the records and the number of its source, whatever the storages are.
// It transfers only what the target lacks, and commits nothing that does not match its digests.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <thread>

#include "kv/read/snapshot.h"
#include "tests/kv/copy/copy_stores.h"
#include "tests/kv/store_checks.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::kv {
namespace {

using cairn::testing::IsError;
using cairn::testing::ScopedTempDir;
using internal::DirectoryStorage;
using internal::FaultyStorage;
using internal::MemoryStorage;
using ::testing::Combine;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::SizeIs;
using ::testing::Values;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

using Outcome = CopiedStep::Outcome;

const Steps& ThreeSteps() {
  static const Steps steps = {{1, MakeSample(1)}, {2, MakeSample(2)}, {3, MakeSample(3)}};
  return steps;
}

std::shared_ptr<Storage> NewMemory(const char* name) {
  return std::make_shared<MemoryStorage>(name);
}

// --- pairs of storages

enum class Medium { kDirectory, kMemory, kFaulty };

class CopyPairTest : public ::testing::TestWithParam<std::tuple<Medium, Medium>> {
 protected:
  std::shared_ptr<Storage> Make(Medium medium, const char* name) {
    if (medium == Medium::kDirectory) return std::make_shared<DirectoryStorage>(dir_ / name);
    if (medium == Medium::kMemory) return NewMemory(name);
    return std::make_shared<FaultyStorage>(NewMemory(name));
  }
  ScopedTempDir dir_{std::filesystem::exists("/dev/shm") ? "/dev/shm" : ""};
  const std::shared_ptr<Storage> source_ = Make(std::get<0>(GetParam()), "source");
  const std::shared_ptr<Storage> target_ = Make(std::get<1>(GetParam()), "target");
};

INSTANTIATE_TEST_SUITE_P(Media, CopyPairTest,
                         Combine(Values(Medium::kDirectory, Medium::kMemory, Medium::kFaulty),
                                 Values(Medium::kDirectory, Medium::kMemory, Medium::kFaulty)));

TEST_P(CopyPairTest, CopiedStepsAreEqualAndVerify) {
  CAIRN_ASSERT_OK(SaveThreeSteps(source_));
  CAIRN_ASSERT_OK_AND_ASSIGN(const CopyReport report,
                             OpenAndCopy(source_, target_, {.steps = {3, 1, 2, 2}}));
  ASSERT_THAT(report.steps, SizeIs(3));
  EXPECT_EQ(report.steps[0].step, 1);
  EXPECT_EQ(report.steps[2].outcome, Outcome::kCopied);
  ExpectSteps(target_, ThreeSteps());
  ExpectSound(target_);
  EXPECT_THAT(ListedNames(*target_), IsEmpty());
}

TEST_P(CopyPairTest, AMissingStepCanBeSkipped) {
  CAIRN_ASSERT_OK(SaveThreeSteps(source_));
  EXPECT_THAT(OpenAndCopy(source_, target_, {.steps = {0, 2}}), IsError(ErrorCode::kNotFound, ""));
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const CopyReport report,
      OpenAndCopy(source_, target_, {.steps = {9, 2, 0}, .skip_lost = true}));
  ASSERT_THAT(report.steps, SizeIs(3));
  EXPECT_EQ(report.steps[0].outcome, Outcome::kDeleted);
  EXPECT_EQ(report.steps[1].outcome, Outcome::kCopied);
  EXPECT_EQ(report.steps[2].step, 9);
}

TEST_P(CopyPairTest, SeveralCopiesShareAThrottle) {
  CAIRN_ASSERT_OK(SaveThreeSteps(source_));
  const auto throttle = std::make_shared<Throttle>(1ull << 50);
  for (const uint64_t step : {1, 2}) {
    const uint64_t before = throttle->reserved_bytes();
    CAIRN_ASSERT_OK_AND_ASSIGN(
        const CopyReport report,
        OpenAndCopy(source_, target_, {.steps = {step}, .throttle = throttle}));
    const uint64_t reserved = throttle->reserved_bytes() - before;
    EXPECT_GT(reserved, 0u) << step;
    // The headers of segments are not payload.
    EXPECT_LE(reserved, report.steps[0].copied_bytes) << step;
  }
}

TEST_P(CopyPairTest, OnlyNewSegmentsAreTransferred) {
  CAIRN_ASSERT_OK(SaveThreeSteps(source_));
  CAIRN_ASSERT_OK(OpenAndCopy(source_, target_, {.steps = {1, 2}}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const CopyReport report,
                             OpenAndCopy(source_, target_, {.steps = {1, 2, 3}}));
  ASSERT_THAT(report.steps, SizeIs(3));
  EXPECT_EQ(report.steps[0].outcome, Outcome::kPresent);
  EXPECT_EQ(report.steps[1].outcome, Outcome::kPresent);
  EXPECT_EQ(report.steps[2].copied_segments, 1);
  EXPECT_GE(report.steps[2].reused_segments, 1);
  ExpectSteps(target_, ThreeSteps());
}

// --- what is copied

class CopyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    CAIRN_ASSERT_OK(SaveThreeSteps(source_));
    CAIRN_ASSERT_OK_AND_ASSIGN(from_, OpenCopyStore(source_, OpenMode::kRead));
    CAIRN_ASSERT_OK_AND_ASSIGN(to_, OpenCopyStore(target_, OpenMode::kWrite));
  }
  void ExpectTarget(const Steps& expected) {
    ExpectSteps(target_, expected);
    ExpectSound(target_);
  }
  /// Closes the target and returns the steps that are recovered without its roots.
  Result<Steps> RebuildTarget(const std::string& name) {
    CAIRN_TRY(to_->Close());
    const auto shared = MemoryStorage::Shared(name);
    for (const char* folder : {"segments/", "tables/"}) {
      CAIRN_TRY_ASSIGN(const auto names, target_->List(folder));
      for (const std::string& object : names) {
        CAIRN_TRY_ASSIGN(const auto bytes, target_->Read(object, 1 << 30));
        CAIRN_TRY(shared->Put(object, bytes));
      }
    }
    CAIRN_TRY_ASSIGN(const auto identity, target_->Read("CAIRN", 1 << 20));
    CAIRN_TRY(shared->Put("CAIRN", identity));
    CAIRN_TRY(Store::Rebuild("memory:" + name));
    return LoadSteps(shared);
  }

  const std::shared_ptr<Storage> source_ = NewMemory("source");
  const std::shared_ptr<Storage> target_ = NewMemory("target");
  std::unique_ptr<Store> from_;
  std::unique_ptr<Store> to_;
};

TEST_F(CopyTest, RecordOfTheStepIsKept) {
  CAIRN_ASSERT_OK(CopySteps(*from_, *to_, {.steps = {2}}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto source, from_->Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto target, to_->Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo a, source->FindStep(2));
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo b, target->FindStep(2));
  EXPECT_EQ(a.attempt, b.attempt);
  EXPECT_EQ(a.created_unix_ns, b.created_unix_ns);
  EXPECT_EQ(a.base_step, b.base_step);
  EXPECT_EQ(a.chunk_count, b.chunk_count);
  EXPECT_EQ(a.written_bytes, b.written_bytes);
  EXPECT_NE(from_->uuid(), to_->uuid());
}

TEST_F(CopyTest, CopyMayHaveAnotherNumber) {
  CAIRN_ASSERT_OK_AND_ASSIGN(CopyReport report,
                             CopySteps(*from_, *to_, {.steps = {2}, .into = 70}));
  ASSERT_THAT(report.steps, SizeIs(1));
  EXPECT_EQ(report.steps[0].step, 70);
  SampleStep expected = MakeSample(2);
  expected.step = 70;
  ExpectTarget({{70, expected}});
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto target, to_->Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo made, target->FindStep(70));
  EXPECT_EQ(made.base_step, std::nullopt);

  // It is recognized, and is not the step 2 of the source.
  CAIRN_ASSERT_OK_AND_ASSIGN(report, CopySteps(*from_, *to_, {.steps = {2}, .into = 70}));
  EXPECT_EQ(report.steps[0].outcome, Outcome::kPresent);
  EXPECT_THAT(CopySteps(*from_, *to_, {.steps = {1}, .into = 70}),
              IsError(ErrorCode::kConflict, "70"));
  EXPECT_THAT(CopySteps(*from_, *to_, {.steps = {1, 2}, .into = 71}),
              IsError(ErrorCode::kInvalidArgument, "one step"));
  CAIRN_ASSERT_OK_AND_ASSIGN(report, CopySteps(*from_, *to_, {.steps = {2}}));
  EXPECT_EQ(report.steps[0].outcome, Outcome::kCopied);
  EXPECT_EQ(report.steps[0].copied_segments, 0);
  ExpectTarget({{2, MakeSample(2)}, {70, expected}});

  CAIRN_ASSERT_OK(CopySteps(*from_, *to_, {.steps = {1}, .into = 70, .overwrite = true}));
  expected = MakeSample(1);
  expected.step = 70;
  ExpectTarget({{2, MakeSample(2)}, {70, expected}});
}

TEST_F(CopyTest, OlderStepIsCopiedAfterANewerOne) {
  CAIRN_ASSERT_OK(CopySteps(*from_, *to_, {.steps = {3}}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const CopyReport report, CopySteps(*from_, *to_, {.steps = {1, 2}}));
  EXPECT_EQ(report.steps[0].copied_segments, 0) << "step 3 uses the segment of step 1";
  ExpectTarget(ThreeSteps());
}

TEST_F(CopyTest, StepOfSeveralRanksIsCopiedWithAllSegments) {
  const auto storage = NewMemory("ranks");
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto rank0, OpenCopyStore(storage, OpenMode::kWrite));
  std::vector<std::unique_ptr<Store>> others;
  for (int rank = 1; rank < 4; ++rank) {
    CAIRN_ASSERT_OK_AND_ASSIGN(auto other, JoinSession(storage, *rank0, SmallCopyBlocks()));
    others.push_back(std::move(other));
  }
  CAIRN_ASSERT_OK(SaveSampleByRanks(*rank0, others, MakeSample(7)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const CopyReport report,
                             CopySteps(*rank0, *to_, {.steps = {7}, .threads = 3}));
  EXPECT_GE(report.steps[0].copied_segments, 3);
  ExpectTarget({{7, MakeSample(7)}});
}

TEST_F(CopyTest, SavesOfTheTargetContinueFromACopy) {
  CAIRN_ASSERT_OK(CopySteps(*from_, *to_, {.steps = {3}}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo saved, SaveSample(*to_, MakeSample(4)));
  EXPECT_GT(saved.reused_chunk_count, 0);
  CAIRN_ASSERT_OK(to_->Delete(std::array<uint64_t, 1>{3}));
  ExpectTarget({{4, MakeSample(4)}});
}

TEST_F(CopyTest, RebuildRecoversCopiesUnderAnyNumber) {
  CAIRN_ASSERT_OK(CopySteps(*from_, *to_, {.steps = {1, 2, 3}}));
  CAIRN_ASSERT_OK(CopySteps(*from_, *to_, {.steps = {2}, .into = 70}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Steps found, RebuildTarget("RebuildRecoversCopies"));
  Steps expected = ThreeSteps();
  expected[70] = MakeSample(2);
  expected[70].step = 70;
  EXPECT_TRUE(found == expected);
}

// --- conflicts

TEST_F(CopyTest, StepThatDoesNotExistIsNotFoundAndNothingIsCopied) {
  EXPECT_THAT(CopySteps(*from_, *to_, {.steps = {1, 9}}), IsError(ErrorCode::kNotFound, "9"));
  ExpectTarget({});
}

TEST_F(CopyTest, StepWithOtherContentsIsAConflict) {
  CAIRN_ASSERT_OK(SaveSample(*to_, MakeSample(2, 5)));
  EXPECT_THAT(CopySteps(*from_, *to_, {.steps = {1, 2}}),
              IsError(ErrorCode::kConflict, "other contents"));
  ExpectTarget({{1, MakeSample(1)}, {2, MakeSample(2, 5)}});
}

TEST_F(CopyTest, OverwriteReplacesAStepWithOtherContents) {
  CAIRN_ASSERT_OK(SaveSample(*to_, MakeSample(2, 5)));
  const auto of_old = SegmentNames(*target_);
  CAIRN_ASSERT_OK(CopySteps(*from_, *to_, {.steps = {1, 2, 3}, .overwrite = true}));
  ExpectTarget(ThreeSteps());
  CAIRN_ASSERT_OK(SaveSample(*to_, MakeSample(4)));  // removes what the grace period has kept
  for (const std::string& name : SegmentNames(*target_)) EXPECT_FALSE(of_old.contains(name));
}

TEST_F(CopyTest, TargetMustBeOpenForWritingAndIdle) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader, OpenCopyStore(target_, OpenMode::kRead));
  EXPECT_THAT(CopySteps(*from_, *reader, {.steps = {1}}),
              IsError(ErrorCode::kFailedPrecondition, "reading only"));
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, to_->Begin(5, {}));
    EXPECT_THAT(CopySteps(*from_, *to_, {.steps = {1}}),
                IsError(ErrorCode::kFailedPrecondition, "still running"));
  }
  bool was_refused = false;
  CAIRN_ASSERT_OK(CopySteps(*from_, *to_, {.steps = {1}, .progress = [&](const CopyProgress&) {
                                             was_refused = !to_->Begin(5, {}).has_value();
                                             return true;
                                           }}));
  EXPECT_TRUE(was_refused);
  CAIRN_ASSERT_OK(SaveSample(*to_, MakeSample(2)));
}

TEST_F(CopyTest, ChangeOfTheTargetByAnotherThreadIsAConflict) {
  CAIRN_ASSERT_OK(SaveSample(*to_, MakeSample(8)));
  bool is_deleted = false;
  const CopyOptions options{.steps = {1}, .progress = [&](const CopyProgress&) {
                              if (!is_deleted) {
                                CAIRN_EXPECT_OK(to_->Delete(std::array<uint64_t, 1>{8}));
                              }
                              return is_deleted = true;
                            }};
  EXPECT_THAT(CopySteps(*from_, *to_, options), IsError(ErrorCode::kConflict, "another thread"));
  ExpectTarget({});
}

// --- names

/// Returns the names that were written, in order, and performs all removals for a second time: a
/// server may perform them, or their repetitions, long after they were answered.
std::vector<std::string> ReplayRemovals(FaultyStorage& storage) {
  std::vector<std::string> written;
  for (const auto& call : storage.Log()) {
    const bool is_root = call.name.starts_with("roots/") || call.name.starts_with("leases/");
    if (is_root || call.name == "hint") continue;
    using enum internal::StorageOperation;
    if (call.operation == kRemove) {
      CAIRN_EXPECT_OK(storage.base()->Remove(call.name));
    }
    if (call.operation == kCreate || call.operation == kPut) written.push_back(call.name);
  }
  return written;
}

/// Copies between stores whose target is open all the time, and sees all its requests.
class CopiedNamesTest : public ::testing::TestWithParam<int> {
 protected:
  /// Opens the target with a grace period of this many milliseconds.
  void SetUp() override {
    CAIRN_ASSERT_OK(SaveThreeSteps(source_));
    CAIRN_ASSERT_OK_AND_ASSIGN(from_, OpenCopyStore(source_, OpenMode::kRead));
    StoreOptions options = SmallCopyBlocks();
    options.grace = std::chrono::milliseconds(GetParam());
    CAIRN_ASSERT_OK_AND_ASSIGN(to_, Store::Open(target_, OpenMode::kWrite, options));
  }
  void TearDown() override {
    const std::vector<std::string> written = ReplayRemovals(*target_);
    EXPECT_EQ(std::set(written.begin(), written.end()).size(), written.size());
    ExpectSteps(target_->base(), expected_);
    ExpectSound(target_->base());
  }
  /// Copies one segment after another, and announces each.
  Result<CopyReport> Copy(std::vector<uint64_t> steps) {
    return CopySteps(
        *from_, *to_,
        {.steps = std::move(steps), .threads = 1, .keep_interval = std::chrono::milliseconds(0)});
  }
  Result<void> Delete(uint64_t step) {
    CAIRN_TRY(to_->Delete(std::array{step}));
    // What was deleted is in the list, and its grace period has passed or never does.
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    return {};
  }

  const std::shared_ptr<Storage> source_ = NewMemory("source");
  const std::shared_ptr<FaultyStorage> target_ =
      std::make_shared<FaultyStorage>(NewMemory("target"));
  std::unique_ptr<Store> from_;
  std::unique_ptr<Store> to_;
  Steps expected_ = ThreeSteps();
};

INSTANTIATE_TEST_SUITE_P(GracePeriods, CopiedNamesTest, Values(0, 1, 3'600'000));

TEST_P(CopiedNamesTest, SegmentsThatTheTargetHasDroppedAreCopiedAgain) {
  CAIRN_ASSERT_OK(Copy({1}));
  CAIRN_ASSERT_OK(Delete(1));
  CAIRN_ASSERT_OK(Copy({3}));  // uses segments of step 1
  CAIRN_ASSERT_OK(Delete(3));
  CAIRN_ASSERT_OK(Copy({1, 2, 3}));
}

TEST_P(CopiedNamesTest, SegmentsThatTheTargetHasSavedAreCopiedBack) {
  CAIRN_ASSERT_OK(SaveSample(*to_, MakeSample(4)));
  CAIRN_ASSERT_OK_AND_ASSIGN(auto other, OpenCopyStore(source_, OpenMode::kWrite));
  CAIRN_ASSERT_OK(CopySteps(*to_, *other, {.steps = {4}}));
  CAIRN_ASSERT_OK(Delete(4));
  CAIRN_ASSERT_OK(Copy({1, 4}));
  CAIRN_ASSERT_OK(Delete(4));
  CAIRN_ASSERT_OK(Copy({2, 3, 4}));
  expected_[4] = MakeSample(4);
}

TEST_P(CopiedNamesTest, FailedSegmentIsCopiedAgainUnderAnotherName) {
  std::string failed;
  for (const auto fault :
       {internal::StorageFault::kRefuse, internal::StorageFault::kLoseResponse}) {
    target_->SetPlan([&](const internal::StorageCall& call) {
      const bool fails = call.operation == internal::StorageOperation::kFinish &&
                         call.name.starts_with("segments/") && failed.empty();
      if (fails) failed = call.name;
      return fails ? fault : internal::StorageFault::kNone;
    });
    EXPECT_THAT(Copy({3}), IsError(ErrorCode::kUnavailable, ""));
    EXPECT_FALSE(failed.empty());
    failed.clear();
    target_->SetPlan(nullptr);
  }
  CAIRN_ASSERT_OK(Copy({1, 2, 3}));
}

TEST_P(CopiedNamesTest, SavesOfOtherRanksGoOnAfterCopies) {
  std::vector<std::unique_ptr<Store>> others(1);
  CAIRN_ASSERT_OK_AND_ASSIGN(others[0], JoinSession(target_, *to_, SmallCopyBlocks()));
  CAIRN_ASSERT_OK(SaveSampleByRanks(*to_, others, MakeSample(7)));
  CAIRN_ASSERT_OK(Copy({1, 2, 3}));
  CAIRN_ASSERT_OK(SaveSampleByRanks(*to_, others, MakeSample(8)));
  expected_[7] = MakeSample(7);
  expected_[8] = MakeSample(8);
}

TEST_F(CopyTest, ReaderFindsASegmentThatWasDeletedAndCopiedBack) {
  CAIRN_ASSERT_OK(CopySteps(*from_, *to_, {.steps = {1}}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader, OpenCopyStore(target_, OpenMode::kRead));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto before, reader->Latest());
  CAIRN_ASSERT_OK(LoadSample(*before, 1));
  CAIRN_ASSERT_OK(to_->Delete(std::array<uint64_t, 1>{1}));
  CAIRN_ASSERT_OK(CopySteps(*from_, *to_, {.steps = {1}}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto after, reader->Latest());
  ExpectSample(*after, MakeSample(1), 1);
}

// --- sources that are damaged or deleted

/// Changes one byte of an object.
Result<void> FlipByte(Storage& storage, const std::string& name, uint64_t offset_bytes) {
  CAIRN_TRY_ASSIGN(auto bytes, storage.Read(name, 1 << 30));
  bytes[offset_bytes] ^= std::byte{1};
  return storage.Put(name, bytes);
}

TEST_F(CopyTest, DamagedSourceIsRefusedAndNamed) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, from_->Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo step, snapshot->FindStep(3));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto usage, snapshot->SegmentUsage());
  int case_count = 0;
  for (const Usage& use : usage) {
    if (use.generation != step.generation) continue;
    CAIRN_ASSERT_OK_AND_ASSIGN(const SegmentInfo info, snapshot->FindSegment(use.segment_id));
    const std::string name = "segments/" + info.name;
    // Header, first and later pages, page digests or footer, and trailer.
    for (const uint64_t offset : {uint64_t{40}, uint64_t{4'096 + 64}, info.file_bytes / 2,
                                  info.file_bytes - 900, info.file_bytes - 60}) {
      // Another target for each: a copy that fails may keep segments that it has finished, which
      // the next one does not read again.
      const auto target = NewMemory("target");
      CAIRN_ASSERT_OK(FlipByte(*source_, name, offset));
      EXPECT_THAT(OpenAndCopy(source_, target, {.steps = {3}}), IsError(ErrorCode::kDataLoss, name))
          << offset;
      CAIRN_ASSERT_OK(FlipByte(*source_, name, offset));
      CAIRN_ASSERT_OK_AND_ASSIGN(const Steps found, LoadSteps(target));
      EXPECT_THAT(found, IsEmpty());
      ++case_count;
    }
  }
  EXPECT_GE(case_count, 10);
  CAIRN_ASSERT_OK(CopySteps(*from_, *to_, {.steps = {3}}));
  ExpectTarget({{3, MakeSample(3)}});
}

TEST_F(CopyTest, StepThatIsDeletedDuringTheCopyIsSkipped) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, OpenCopyStore(source_, OpenMode::kWrite));
  const CopyOptions options{.steps = {1, 2, 3}, .progress = [&](const CopyProgress& progress) {
                              if (progress.step == 2 && progress.done_bytes == 0) {
                                const auto deleted = writer->Delete(std::array<uint64_t, 1>{2});
                                CAIRN_EXPECT_OK(deleted);
                              }
                              return true;
                            }};
  CAIRN_ASSERT_OK_AND_ASSIGN(const CopyReport report, CopySteps(*from_, *to_, options));
  ASSERT_THAT(report.steps, SizeIs(3));
  EXPECT_EQ(report.steps[1].outcome, Outcome::kDeleted);
  EXPECT_EQ(report.steps[2].outcome, Outcome::kCopied);
  ExpectTarget({{1, MakeSample(1)}, {3, MakeSample(3)}});
}

TEST_F(CopyTest, SourceMaySaveAndDeleteDuringCopies) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, OpenCopyStore(source_, OpenMode::kWrite));
  std::atomic<bool> is_done = false;
  std::jthread trainer([&] {
    for (uint64_t step = 4; step < 24; ++step) {
      CAIRN_EXPECT_OK(SaveSample(*writer, MakeSample(step)));
      CAIRN_EXPECT_OK(writer->Delete(std::array{step - 3}));
    }
    is_done = true;
  });
  for (bool is_last = false; !is_last;) {
    is_last = is_done;
    // Readers share nothing with the writer; the writer's own store is a source as well.
    for (Store* source : {from_.get(), writer.get()}) {
      CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, source->Latest());
      const auto copied =
          CopySteps(*source, *to_, {.steps = snapshot->step_numbers(), .threads = 3});
      // A step may be deleted after the snapshot was taken and before the copy begins.
      EXPECT_TRUE(copied || copied.error().code == ErrorCode::kNotFound);
    }
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const Steps found, LoadSteps(target_));
  for (const auto& [step, sample] : found) EXPECT_TRUE(sample == MakeSample(step)) << step;
  for (const uint64_t step : {21, 22, 23}) EXPECT_TRUE(found.contains(step)) << step;
}

// --- interrupted copies

/// Stops a copy of `steps` when `count` segments are announced.
CopyOptions StopAfter(Storage& target, std::vector<uint64_t> steps, size_t count) {
  return {.steps = std::move(steps),
          .threads = 1,
          .keep_interval = std::chrono::milliseconds(0),
          .progress = [&target, count](const CopyProgress&) {
            return ListedNames(target).size() < count;
          }};
}

TEST_F(CopyTest, InterruptedCopyContinuesWithWhatWasFinished) {
  EXPECT_THAT(CopySteps(*from_, *to_, StopAfter(*target_, {3}, 1)),
              IsError(ErrorCode::kCancelled, "continues"));
  const auto kept = SegmentNames(*target_);
  EXPECT_THAT(kept, SizeIs(1));
  EXPECT_EQ(ListedNames(*target_), kept);
  ExpectTarget({});

  // The sweep of the next writer, and its commits, leave them.
  CAIRN_ASSERT_OK_AND_ASSIGN(to_, OpenCopyStore(target_, OpenMode::kWrite));
  CAIRN_ASSERT_OK(SaveSample(*to_, MakeSample(9, 9)));
  EXPECT_THAT(SegmentNames(*target_), IsSupersetOf(kept));

  CAIRN_ASSERT_OK_AND_ASSIGN(const CopyReport report, CopySteps(*from_, *to_, {.steps = {3}}));
  EXPECT_EQ(report.steps[0].reused_segments, 1);
  EXPECT_GE(report.steps[0].copied_segments, 1);
  EXPECT_THAT(ListedNames(*target_), IsEmpty()) << "a step uses what would be removed later";
  EXPECT_THAT(SegmentNames(*target_), IsSupersetOf(kept));
  CAIRN_ASSERT_OK_AND_ASSIGN(to_, OpenCopyStore(target_, OpenMode::kWrite));
  CAIRN_ASSERT_OK(to_->Delete(std::array<uint64_t, 1>{9}));
  ExpectTarget({{3, MakeSample(3)}});
}

TEST_F(CopyTest, AnnouncedSegmentsThatNobodyUsesAreRemovedInTheEnd) {
  EXPECT_FALSE(CopySteps(*from_, *to_, StopAfter(*target_, {3}, 1)));
  EXPECT_THAT(SegmentNames(*target_), SizeIs(1));
  CAIRN_ASSERT_OK(to_->Close());
  CAIRN_ASSERT_OK_AND_ASSIGN(auto root, internal::FindNewest(*target_));
  for (auto& object : root->removed) object.since_unix_ns -= 25 * 3'600'000'000'000;  // a day later
  ++root->number;
  root->predecessor = root->commit_id;
  ASSERT_EQ(internal::CommitRoot(*target_, *root).state,
            internal::CommitOutcome::State::kCommitted);
  CAIRN_ASSERT_OK_AND_ASSIGN(to_, OpenCopyStore(target_, OpenMode::kWrite));
  EXPECT_THAT(SegmentNames(*target_), IsEmpty());
  CAIRN_ASSERT_OK(SaveSample(*to_, MakeSample(9)));
  EXPECT_THAT(ListedNames(*target_), IsEmpty());
  CAIRN_ASSERT_OK(CopySteps(*from_, *to_, {.steps = {3}}));
  ExpectTarget({{3, MakeSample(3)}, {9, MakeSample(9)}});
}

TEST_F(CopyTest, DamagedAnnouncedSegmentIsCopiedAgain) {
  EXPECT_FALSE(CopySteps(*from_, *to_, StopAfter(*target_, {3}, 1)));
  const std::string name = *SegmentNames(*target_).begin();
  CAIRN_ASSERT_OK_AND_ASSIGN(const uint64_t size_bytes, target_->Size(name));
  CAIRN_ASSERT_OK(FlipByte(*target_, name, size_bytes - 60));
  CAIRN_ASSERT_OK_AND_ASSIGN(const CopyReport report, CopySteps(*from_, *to_, {.steps = {3}}));
  EXPECT_EQ(report.steps[0].reused_segments, 0);
  ExpectTarget({{3, MakeSample(3)}});
}

TEST_F(CopyTest, CopierThatWasTakenOverChangesNothing) {
  std::unique_ptr<Store> other;
  std::set<std::string> of_other;
  CopyOptions options = StopAfter(*target_, {3}, 99);
  options.progress = [&](const CopyProgress&) {
    if (other != nullptr || ListedNames(*target_).empty()) return true;
    // The successor finishes the copy with the segment that this copier has announced.
    auto opened = OpenCopyStore(target_, OpenMode::kWrite);
    EXPECT_TRUE(cairn::testing::IsOk(opened));
    other = *std::move(opened);
    const auto report = CopySteps(*from_, *other, {.steps = {3}});
    EXPECT_TRUE(cairn::testing::IsOk(report));
    EXPECT_EQ(report->steps[0].reused_segments, 1);
    of_other = SegmentNames(*target_);
    return true;
  };
  EXPECT_THAT(CopySteps(*from_, *to_, options), IsError(ErrorCode::kConflict, "taken over"));
  to_.reset();
  EXPECT_EQ(SegmentNames(*target_), of_other);
  CAIRN_ASSERT_OK(SaveSample(*other, MakeSample(4)));
  ExpectTarget({{3, MakeSample(3)}, {4, MakeSample(4)}});
}

}  // namespace
}  // namespace cairn::kv
