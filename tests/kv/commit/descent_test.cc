// From which step another one continued, and its run.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

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

}  // namespace
}  // namespace cairn::kv
