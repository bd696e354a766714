// From which step another one continued, and its run.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "kv/base/retention.h"
#include "kv/copy_steps.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "kv/store.h"
#include "tests/kv/sample_step.h"
#include "tests/kv/store_checks.h"
#include "tests/support/result_matchers.h"

namespace cairn::kv {
namespace {

using cairn::testing::IsError;
using internal::MemoryStorage;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

class DescentTest : public ::testing::Test {
 protected:
  void SetUp() override { Open(); }
  void Open() {
    store_.reset();
    CAIRN_ASSERT_OK_AND_ASSIGN(store_, Store::Open(storage_, OpenMode::kWrite));
  }
  StepInfo Save(uint64_t step, uint64_t version = 0) {
    return *SaveSample(*store_, MakeSample(step, version), /*overwrite=*/version > 0);
  }
  /// Saves the contents of `same` again, with options.
  Result<StepInfo> SaveSame(uint64_t step, const StepInfo& same, const BeginOptions& options) {
    CAIRN_TRY_ASSIGN(const auto writer, store_->Begin(step, options));
    return writer->CommitSame(same);
  }
  StepInfo Find(uint64_t step) { return *store_->Latest().value()->FindStep(step); }
  static void ExpectParent(const StepInfo& step, const StepInfo& parent) {
    EXPECT_EQ(step.parent, (ParentStep{.step = parent.step, .attempt = parent.attempt}));
    EXPECT_EQ(step.run, parent.run);
  }

  const std::shared_ptr<MemoryStorage> storage_ = std::make_shared<MemoryStorage>("descent");
  std::unique_ptr<Store> store_;
};

TEST_F(DescentTest, StepContinuesFromTheLastOneAlsoAfterARestart) {
  const StepInfo first = Save(1);
  EXPECT_EQ(first.parent, std::nullopt);
  EXPECT_TRUE(first.run.has_value());
  ExpectParent(Save(2), first);
  Open();
  ExpectParent(Save(3), Find(2));
  ExpectParent(Find(2), Find(1));
}

TEST_F(DescentTest, StepThatWasLoadedIsTheParentOfAFork) {
  for (const uint64_t step : {1, 2, 3}) Save(step);
  Open();
  store_->ContinueFrom(Find(1));
  const StepInfo fork = Save(10);
  ExpectParent(fork, Find(1));
  ExpectParent(Save(11), fork);
}

TEST_F(DescentTest, ReplacedStepLeavesItsParent) {
  Save(1);
  Save(2);
  const StepInfo again = Save(2, 1);
  ExpectParent(again, Find(1));
  ExpectParent(Save(3), again);
}

TEST_F(DescentTest, ReplacedOlderStepHasItsOwnParent) {
  for (const uint64_t step : {1, 2, 3}) Save(step);
  const StepInfo again = Save(2, 1);
  ExpectParent(again, Find(1));
}

TEST_F(DescentTest, ParentIsTheOneAtTheBeginOfTheSave) {
  const StepInfo first = Save(1);
  const StepInfo second = Save(2);
  CAIRN_ASSERT_OK_AND_ASSIGN(auto writer, store_->Begin(3, {}));
  store_->ContinueFrom(first);
  CAIRN_ASSERT_OK(store_->Delete(std::array<uint64_t, 1>{2}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo third, writer->CommitSame(first));
  writer.reset();
  ExpectParent(third, second);
  ExpectParent(Save(4), first);  // which was loaded after the begin of step 3
}

TEST_F(DescentTest, SaveThatBeginsLaterContinuesFromWhatWasLoadedWhenItWasRequested) {
  for (const uint64_t step : {1, 2}) Save(step);
  const Continuation requested = store_->continuation();
  store_->ContinueFrom(Find(1));
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo third,
                             SaveSame(3, Find(2), {.continuation = requested}));
  ExpectParent(third, Find(2));
  ExpectParent(Save(4), Find(1));
}

TEST_F(DescentTest, DerivedStepIsNoParentUnlessItReplacesThatOfTheNextStep) {
  const StepInfo first = Save(1);
  CAIRN_ASSERT_OK(SaveSame(9, first, {.parent = 1, .is_derived = true}));
  ExpectParent(Save(2), first);
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const StepInfo edited,
      SaveSame(2, Find(2), {.overwrite = true, .parent = 2, .is_derived = true}));
  ExpectParent(edited, first);
  ExpectParent(Save(3), edited);
}

TEST_F(DescentTest, StepThatIsMadeOfAnOldOneIsNotTheLatest) {
  for (const uint64_t step : {10, 20, 30}) Save(step);
  const auto latest = [&] {
    const auto reader = Store::Open(storage_, OpenMode::kRead);
    return (*reader)->Latest().value()->FindStep(std::nullopt)->step;
  };
  const BeginOptions of_10{.parent = 10, .is_derived = true};
  CAIRN_ASSERT_OK(SaveSame(29, Find(10), of_10));
  CAIRN_ASSERT_OK(SaveSame(99, Find(10), of_10));
  EXPECT_EQ(latest(), 30u);
  store_->ContinueFrom(Find(30));
  Save(5);  // an old checkpoint is imported
  EXPECT_EQ(latest(), 30u);
  // Neither if it is the highest one that is not above the parent of the import, nor under its
  // number.
  CAIRN_ASSERT_OK(store_->Delete(std::array<uint64_t, 1>{30}));
  EXPECT_EQ(latest(), 20u);
  CAIRN_ASSERT_OK(SaveSame(30, Find(10), of_10));
  EXPECT_EQ(latest(), 20u);
}

TEST_F(DescentTest, CallerNamesParentAndRun) {
  const StepInfo first = Save(1);
  Save(2);
  const RunId run{std::byte{7}};
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo fork, SaveSame(3, first, {.parent = 1, .run = run}));
  EXPECT_EQ(fork.parent->attempt, first.attempt);
  EXPECT_EQ(fork.run, run);
  EXPECT_EQ(Save(4).run, run);
  EXPECT_THAT(SaveSame(5, first, {.parent = 9}), IsError(ErrorCode::kNotFound, "9"));
}

TEST_F(DescentTest, CopiesAndRebuildsKeepIt) {
  for (const uint64_t step : {1, 2}) Save(step);
  const StepInfo second = Find(2);
  const auto to = std::make_shared<MemoryStorage>("to");
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto target, Store::Open(to, OpenMode::kWrite));
  CAIRN_ASSERT_OK(CopySteps(*store_, *target, {.steps = {2}, .into = 20}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo copy, target->Latest().value()->FindStep(20));
  EXPECT_EQ(copy.parent, second.parent);
  EXPECT_EQ(copy.run, second.run);
  CAIRN_ASSERT_OK(store_->Close());
  RemoveObjects(*storage_, "roots/");
  CAIRN_ASSERT_OK(Store::Rebuild(storage_));
  Open();
  EXPECT_EQ(Find(2).parent, second.parent);
  EXPECT_EQ(Find(2).run, second.run);
}

// --- Lines

StepInfo Saved(uint64_t step, int64_t created_unix_ns, const std::string& attempt,
               std::optional<ParentStep> parent = {}) {
  StepInfo info{.step = step, .created_unix_ns = created_unix_ns, .attempt = attempt};
  info.parent = std::move(parent);
  return info;
}

TEST(LineTest, LeavesOutAStepThatHasReplacedTheParent) {
  const StepInfo first = Saved(10, 1, "a");
  const StepInfo third = Saved(30, 3, "c", ParentStep{20, "b"});
  StepInfo other = Saved(20, 1, "b2", ParentStep{10, "a"});  // made of step 10
  other.base_step = 10;
  EXPECT_THAT(LineOf(std::array{first, other, third}, 30), ElementsAre(30, 10));
  // An edit of itself contains the same state.
  StepInfo edited = Saved(20, 2, "b2", ParentStep{10, "a"});
  edited.base_step = 20;
  EXPECT_THAT(LineOf(std::array{first, edited, third}, 30), ElementsAre(30, 20, 10));
}

TEST(LineTest, FollowsTheAttemptUnderAnotherNumber) {
  const std::array steps{Saved(10, 1, "a"), Saved(15, 1, "x"),
                         Saved(110, 2, "b", ParentStep{20, "a"}),
                         Saved(120, 3, "c", ParentStep{30, "b"})};
  EXPECT_THAT(LineOf(steps, 120), ElementsAre(120, 110, 10));
}

TEST(LineTest, GoesOnWithTheStepThatWasSavedLastBelowAParentThatWasDeleted) {
  const std::array steps{Saved(5, 1, "a"),
                         Saved(7, 1, "a2", ParentStep{5, "a"}),  // made of step 5
                         Saved(10, 2, "b", ParentStep{5, "a"}),
                         Saved(12, 5, "e", ParentStep{10, "b"}),  // the run has gone back to 10
                         Saved(20, 3, "c", ParentStep{10, "b"}),
                         Saved(30, 4, "d", ParentStep{20, "c"}),
                         Saved(40, 7, "g", ParentStep{35, "f"})};  // 35 continued from 12
  EXPECT_THAT(LineOf(steps, 40), ElementsAre(40, 12, 10, 5));
  EXPECT_THAT(LineOf(steps, 30), ElementsAre(30, 20, 10, 5));
  EXPECT_THAT(LineOf(steps, 6), ElementsAre(5));
  EXPECT_THAT(LineOf(steps, 4), IsEmpty());
}

}  // namespace
}  // namespace cairn::kv
