// The changes, and the stores that they change.

#include "tests/fault/storage_scenarios.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "kv/compact.h"
#include "kv/copy_steps.h"
#include "kv/read/snapshot.h"
#include "kv/root/internal/root_log.h"
#include "kv/storage/storage.h"
#include "tests/support/result_matchers.h"

namespace cairn::kv::testing {
namespace {

using cairn::testing::IsError;
using cairn::testing::IsOk;
using internal::FaultyStorage;
using internal::MemoryStorage;
using std::chrono::milliseconds;
using ::testing::AnyOf;

constexpr SampleShape kTiny{.tensor_count = 1, .largest_bytes = 1};

SampleStep Sample(uint64_t step, uint64_t version = 0) {
  return MakeSample(step, version, kFaultShape);
}

Result<Steps> PrepareHistory(const std::shared_ptr<Storage>& storage) {
  return MakeHistory(storage, kFaultShape);
}

/// One change, and its effect on the contents.
struct Change {
  std::function<Result<void>(Store&, milliseconds patience)> perform;
  std::function<void(Steps&)> apply;
};

Change Save(SampleStep sample, bool overwrite = false) {
  return {.perform = [=](Store& store, milliseconds) -> Result<void> {
            CAIRN_TRY(SaveSample(store, sample, overwrite));
            return {};
          },
          .apply = [=](Steps& steps) { steps[sample.step] = sample; }};
}

Change Delete(std::vector<uint64_t> numbers) {
  return {.perform = [=](Store& store, milliseconds) -> Result<void> {
            CAIRN_TRY(store.Delete(numbers));
            return {};
          },
          .apply =
              [=](Steps& steps) {
                for (const uint64_t number : numbers) steps.erase(number);
              }};
}

Change Tag(uint64_t step) {
  return {
      .perform = [step](Store& store, milliseconds) { return store.ChangeTags({{"best", step}}); },
      .apply = [](Steps&) {}};
}

Change CompactAll() {
  return {.perform = [](Store& store, milliseconds) -> Result<void> {
            CAIRN_TRY(Compact(store, {.max_dead = 0}));
            return {};
          },
          .apply = [](Steps&) {}};
}

/// The storage with the usual history that copies read.
const std::shared_ptr<MemoryStorage>& Source() {
  static const auto source = [] {
    auto storage = std::make_shared<MemoryStorage>("source");
    EXPECT_TRUE(IsOk(PrepareHistory(storage)));
    return storage;
  }();
  return source;
}

/// A copy of a step, with an announcement after each segment.
Change Copy(const SampleStep& sample) {
  return {.perform = [=](Store& store, milliseconds) -> Result<void> {
            CAIRN_TRY_ASSIGN(const auto source, Store::Open(Source(), OpenMode::kRead));
            CAIRN_TRY(CopySteps(
                *source, store,
                {.steps = {sample.step}, .threads = 1, .keep_interval = milliseconds(0)}));
            return {};
          },
          .apply = [=](Steps& steps) { steps[sample.step] = sample; }};
}

/// A save by three ranks, two of which join the session.
Change SaveByRanks(SampleStep sample, const std::shared_ptr<FaultyStorage>& storage) {
  return {.perform = [=](Store& store, milliseconds patience) -> Result<void> {
            StoreOptions join = SmallBlocks();
            CAIRN_TRY_ASSIGN(join.session, store.OpenSession());
            std::vector<std::unique_ptr<Store>> others(2);
            for (auto& other : others) {
              CAIRN_TRY_ASSIGN(other, Store::Open(storage, OpenMode::kJoinSession, join));
            }
            CAIRN_TRY(SaveSampleByRanks(store, others, sample, patience));
            return {};
          },
          .apply = [=](Steps& steps) { steps[sample.step] = sample; }};
}

bool MayBeCommitted(const Error& error) {
  return error.code == ErrorCode::kInternal ||  // a rank knows that it is
         error.message.find("unknown whether") != std::string::npos;
}

/// Repeats a change that has failed.
void Repeat(const Change& change, Store& store, Progress& progress) {
  const Result<void> repeated = change.perform(store, milliseconds(10'000));
  // On a busy machine, ranks may miss their deadline after this writer has taken over from the
  // other one. CheckStore finds out if there were two writers.
  const bool was_late = repeated && progress.error->code == ErrorCode::kUnavailable;
  if (progress.other_writer && !MayBeCommitted(*progress.error) && !was_late) {
    EXPECT_THAT(repeated, AnyOf(IsError(ErrorCode::kConflict, "taken over"),
                                IsError(ErrorCode::kFailedPrecondition, "no such session")));
    return;
  }
  if (repeated) {
    EXPECT_FALSE(MayBeCommitted(*progress.error)) << "an unknown outcome was forgotten";
    progress.acknowledged = *std::exchange(progress.in_doubt, std::nullopt);
    return;
  }
  EXPECT_TRUE(MayBeCommitted(*progress.error)) << repeated.error().ToString();
  EXPECT_THAT(repeated, IsError(ErrorCode::kFailedPrecondition, "open it again"));
}

bool IsPowerCut(const std::shared_ptr<FaultyStorage>& storage) {
  return !storage->Size("CAIRN") && storage->Size("CAIRN").error().code != ErrorCode::kNotFound;
}

/// Opens the store for writing, makes the changes, and closes it.
void ChangeStore(const std::shared_ptr<FaultyStorage>& storage, const std::vector<Change>& changes,
                 milliseconds patience, Progress& progress, bool take_over = false) {
  StoreOptions options = SmallBlocks();
  options.take_over = take_over;
  const auto store = Store::Open(storage, OpenMode::kWrite, options);
  if (!store) {
    progress.error = store.error();
    return;
  }
  for (const Change& change : changes) {
    const Result<void> performed = change.perform(**store, patience);
    Steps after = progress.acknowledged;
    change.apply(after);
    if (performed) {
      progress.acknowledged = std::move(after);
      continue;
    }
    progress.error = performed.error();
    progress.in_doubt = std::move(after);
    storage->SetPlan({});
    if (!IsPowerCut(storage)) Repeat(change, **store, progress);
    return;
  }
  // A lease that cannot be removed is reported, but the changes were made.
  if (const auto closed = (*store)->Close(); !closed) progress.error = closed.error();
}

Result<Steps> PrepareNothing(const std::shared_ptr<Storage>&) { return Steps(); }

Result<Steps> PrepareGarbage(const std::shared_ptr<Storage>& storage) {
  CAIRN_TRY_ASSIGN(Steps steps, PrepareHistory(storage));
  CAIRN_TRY(PlantGarbage(*storage));
  return steps;
}

/// A copy of step 1, whose segments the other steps share.
Result<Steps> PrepareCopy(const std::shared_ptr<Storage>& storage) {
  CAIRN_TRY_ASSIGN(const auto store, Store::Open(storage, OpenMode::kWrite, SmallBlocks()));
  CAIRN_TRY(Copy(Sample(1)).perform(*store, {}));
  CAIRN_TRY(store->Close());
  return Steps{{1, Sample(1)}};
}

/// So many commits that the next one removes a root, and moves steps to a page.
Result<Steps> PrepareLongHistory(const std::shared_ptr<Storage>& storage) {
  CAIRN_TRY_ASSIGN(const auto store, Store::Open(storage, OpenMode::kWrite, SmallBlocks()));
  constexpr uint64_t kSteps = 64;
  static_assert(kSteps >= internal::kKeptRoots);
  Steps steps;
  // Root 1 is the open. Another open follows, so the next save commits root 80.
  for (uint64_t root = 2; root <= 78; ++root) {
    const uint64_t step = root - 1 <= kSteps ? root - 1 : kSteps;
    steps[step] = MakeSample(step, root, kTiny);
    CAIRN_TRY(SaveSample(*store, steps[step], /*overwrite=*/true));
  }
  CAIRN_TRY(store->Close());
  return steps;
}

/// The first writer saves, and is still there when the second takes over.
void RunTakeOver(const std::shared_ptr<FaultyStorage>& storage, milliseconds patience,
                 Progress& progress) {
  // The first writer has no faults: its machine is another one.
  const auto first = Store::Open(storage->base(), OpenMode::kWrite, SmallBlocks());
  CAIRN_ASSERT_OK(first);
  CAIRN_ASSERT_OK(SaveSample(**first, Sample(4)));
  progress.acknowledged[4] = Sample(4);
  ChangeStore(storage, {Save(Sample(5))}, patience, progress, /*take_over=*/true);
  const bool has_saved = progress.acknowledged.contains(5);
  const auto late = SaveSample(**first, Sample(6));
  if (late) {
    EXPECT_FALSE(has_saved) << "two writers";
    EXPECT_TRUE(progress.error.has_value());
    progress.acknowledged[6] = Sample(6);
    progress.in_doubt = std::nullopt;
  } else {
    EXPECT_THAT(late, IsError(ErrorCode::kConflict, "taken over"));
  }
}

/// A scenario with these changes. `changes` receives the storage, which ranks open.
Scenario Changes(
    const char* name, decltype(Scenario::prepare) prepare,
    std::function<std::vector<Change>(const std::shared_ptr<FaultyStorage>&)> changes) {
  return {.name = name,
          .prepare = std::move(prepare),
          .run = [=](const std::shared_ptr<FaultyStorage>& storage, milliseconds patience,
                     Progress& progress) {
            ChangeStore(storage, changes(storage), patience, progress);
          }};
}

}  // namespace

std::shared_ptr<MemoryStorage> CopyOf(Storage& storage) {
  auto copy = std::make_shared<MemoryStorage>("copy");
  const std::vector<std::string> names = storage.List("").value();
  for (const std::string& name : names) {
    const auto bytes = storage.Read(name, ~uint64_t{0}).value();
    EXPECT_TRUE(copy->Put(name, bytes).has_value());
  }
  return copy;
}

std::vector<Scenario> SmallScenarios() {
  using Changed = std::vector<Change>;
  using Faulty = const std::shared_ptr<FaultyStorage>&;
  return {
      Changes("create", PrepareNothing, [](Faulty) { return Changed{Save(Sample(1))}; }),
      Changes("save", PrepareHistory,
              [](Faulty) { return Changed{Save(MakeSample(4, 0, kTiny)), Save(Sample(5))}; }),
      Changes("overwrite", PrepareHistory,
              [](Faulty) { return Changed{Save(Sample(2, 2), true)}; }),
      Changes("delete", PrepareHistory,
              [](Faulty) { return Changed{Delete({1}), Delete({2, 3})}; }),
      Changes("compact", PrepareHistory, [](Faulty) { return Changed{CompactAll()}; }),
      Changes("tag", PrepareHistory, [](Faulty) { return Changed{Tag(3), Tag(1), Delete({1})}; }),
      Changes("ranks", PrepareHistory,
              [](Faulty storage) { return Changed{SaveByRanks(Sample(4), storage)}; }),
      Changes("copy", PrepareCopy,
              [](Faulty) { return Changed{Copy(Sample(2, 1)), Copy(Sample(3))}; }),
      Changes("sweep", PrepareGarbage, [](Faulty) { return Changed{}; }),
      {.name = "take-over", .prepare = PrepareHistory, .run = RunTakeOver},
  };
}

Scenario LongHistory() {
  return Changes("long history", PrepareLongHistory,
                 [](const auto&) { return std::vector{Save(MakeSample(65, 0, kTiny))}; });
}

}  // namespace cairn::kv::testing
