// Goal: whatever happens to one call of the storage during a complete change of a store, every step
// that was acknowledged is there, complete and bit for bit, and every other step is complete or
// absent. The next open finds no damage, and the next save succeeds.
//
// What is promised if a write is acknowledged but lost (StorageFault::kLoseWrite):
//   - a segment, a table, a page or a root: the change fails before it is acknowledged, or succeeds
//     because the write is repeated. The store checks that they exist before it refers to them;
//   - CAIRN: the creation fails;
//   - a part of a rank, or records that ranks share: the save fails at its deadline or before;
//   - the outcome of a save: the ranks find the step in the newest root;
//   - a lease: it is put again before other ranks join. A second writer may not be refused at its
//     open, but the number of the root remains the fence, so no commit is lost;
//   - the hint: searches take longer, and do not notice that the newest root is lost;
//   - a removal: the object remains until the next open for writing.
//
// By default, power cuts and the store with a long history are tested at some of the calls.
// CAIRN_FAULT_ALL tests all.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "kv/base/options.h"
#include "kv/read/snapshot.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "kv/store.h"
#include "tests/fault/operations.h"
#include "tests/fault/storage_scenarios.h"
#include "tests/kv/sample_step.h"
#include "tests/kv/store_checks.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/result_matchers.h"

namespace cairn::kv {
namespace {

using cairn::testing::IsError;
using cairn::testing::IsOk;
using internal::CanHappen;
using internal::FaultAt;
using internal::FaultPlan;
using internal::FaultyStorage;
using internal::MemoryStorage;
using internal::StorageCall;
using internal::StorageFault;
using internal::StorageFaultName;
using internal::StorageOperation;
using ::testing::AnyOf;
using ::testing::IsEmpty;
using ::testing::Not;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)
using std::chrono::milliseconds;

// Until when ranks wait for a rank that has failed; and for one that is only slow.
constexpr milliseconds kImpatient{40};
constexpr milliseconds kPatient{20'000};

/// Opens for writing. This process is alive, so a lease that it could not release refuses it.
Result<std::unique_ptr<Store>> OpenForWriting(const std::shared_ptr<Storage>& storage) {
  auto store = Store::Open(storage, OpenMode::kWrite, SmallBlocks());
  if (store || store.error().code != ErrorCode::kConflict) return store;
  EXPECT_THAT(storage->List("leases/").value(), Not(IsEmpty()));
  StoreOptions options = SmallBlocks();
  options.take_over = true;
  return Store::Open(storage, OpenMode::kWrite, options);
}

/// Loads everything as a reader does. A store that was not created yet has no steps.
void Read(const std::shared_ptr<Storage>& storage, Steps& steps) {
  const auto reader = Store::Open(storage, OpenMode::kRead, SmallBlocks());
  steps.clear();
  if (!reader && reader.error().code == ErrorCode::kNotFound) return;
  CAIRN_ASSERT_OK(reader);
  CAIRN_ASSERT_OK_AND_ASSIGN(steps, LoadAllFrom(**reader));
}

void ExpectPromised(const Steps& found, const Progress& progress) {
  if (!progress.in_doubt) {
    EXPECT_TRUE(found == progress.acknowledged) << "an acknowledged change is lost, or more";
    return;
  }
  EXPECT_TRUE(found == progress.acknowledged || found == *progress.in_doubt);
  const Error& error = *progress.error;
  if (error.code == ErrorCode::kInternal) {
    EXPECT_TRUE(found == *progress.in_doubt) << "a rank was told that it was committed";
  } else if (error.message.find("unknown whether") == std::string::npos) {
    EXPECT_TRUE(found == progress.acknowledged) << "it was committed, but the error does not say "
                                                << "that it may be: " << error.ToString();
  }
}

/// Checks what the scenario left in `storage`, and that the store can be used: saves another step,
/// and adds it to `progress`.
void CheckStore(const std::shared_ptr<Storage>& storage, Progress& progress,
                bool listings_are_late = false) {
  SCOPED_TRACE(progress.error ? "error: " + progress.error->ToString() : "no error");
  Steps found;
  Read(storage, found);
  if (::testing::Test::HasFatalFailure()) return;
  ExpectPromised(found, progress);
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, OpenForWriting(storage));
    ExpectSteps(*store, found);
    ExpectSound(*store);
    if (!listings_are_late) {
      ExpectNoLeftovers(storage);
    }
    const uint64_t next = found.empty() ? 1 : found.rbegin()->first + 1;
    found[next] = MakeSample(next, 9, kFaultShape);
    CAIRN_ASSERT_OK(SaveSample(*store, found[next]));
    CAIRN_ASSERT_OK(store->Close());
  }
  Read(storage, progress.acknowledged);
  EXPECT_TRUE(progress.acknowledged == found);
  progress.in_doubt = std::nullopt;
}

/// A scenario with the store before it, and the calls of a run without faults.
struct Prepared {
  explicit Prepared(const Scenario& given) : scenario(given) {
    const auto steps = scenario.prepare(store);
    EXPECT_TRUE(IsOk(steps));
    before = steps.value_or(Steps());
    const auto base = CopyOf(*store);
    const auto storage = std::make_shared<FaultyStorage>(base);
    Progress progress{.acknowledged = before};
    scenario.run(storage, kPatient, progress);
    EXPECT_FALSE(progress.error.has_value()) << progress.error->ToString();
    calls = storage->Log();
    CheckStore(base, progress);
  }

  const Scenario scenario;
  const std::shared_ptr<MemoryStorage> store = std::make_shared<MemoryStorage>("prepared");
  Steps before;
  std::vector<StorageCall> calls;
};

/// Runs the scenario with the faults of `plan`, and checks what it leaves.
void RunWithFaults(const Prepared& prepared, FaultPlan plan, bool restore_removed = false) {
  const auto base = CopyOf(*prepared.store);
  const auto storage = std::make_shared<FaultyStorage>(base);
  if (restore_removed) storage->KeepRemoved();
  storage->SetPlan(std::move(plan));
  Progress progress{.acknowledged = prepared.before};
  prepared.scenario.run(storage, kImpatient, progress);
  EXPECT_TRUE(IsOk(storage->RestoreRemoved()));  // nothing if they were not kept
  CheckStore(base, progress);
}

/// Repeats the scenario with a fault at every `stride`-th call to which it can happen.
void RunWithEachFault(const Prepared& prepared, StorageFault fault, uint64_t stride,
                      const std::function<void(uint64_t)>& run) {
  uint64_t count = 0, possible = 0;
  for (const StorageCall& call : prepared.calls) {
    if (!CanHappen(fault, call.operation) || possible++ % stride != 0) continue;
    SCOPED_TRACE(fmt::format("{}: {} at call {}, {} {}", prepared.scenario.name,
                             StorageFaultName(fault), call.index,
                             StorageOperationName(call.operation), call.name));
    run(call.index);
    if (::testing::Test::HasFailure()) return;
    ++count;
  }
  fmt::print("{}: {} of {} calls\n", prepared.scenario.name, count, prepared.calls.size());
}

uint64_t Stride(uint64_t usual) { return std::getenv("CAIRN_FAULT_ALL") != nullptr ? 1 : usual; }

// --- one fault

class StorageFaultTest : public ::testing::TestWithParam<StorageFault> {};

TEST_P(StorageFaultTest, LeavesEveryAcknowledgedStep) {
  for (const Scenario& scenario : SmallScenarios()) {
    const Prepared prepared(scenario);
    RunWithEachFault(prepared, GetParam(), 1,
                     [&](uint64_t index) { RunWithFaults(prepared, FaultAt(index, GetParam())); });
    if (HasFailure()) return;
  }
}

TEST_P(StorageFaultTest, LeavesEveryAcknowledgedStepOfALongHistory) {
  const Prepared prepared(LongHistory());
  RunWithEachFault(prepared, GetParam(), Stride(7),
                   [&](uint64_t index) { RunWithFaults(prepared, FaultAt(index, GetParam())); });
}

INSTANTIATE_TEST_SUITE_P(Faults, StorageFaultTest,
                         ::testing::Values(StorageFault::kRefuse, StorageFault::kLoseResponse,
                                           StorageFault::kLoseWrite, StorageFault::kConflict,
                                           StorageFault::kTear),
                         [](const auto& info) { return StorageFaultName(info.param); });

// --- a power cut

/// Whether the call during which the power is cut is performed, and whether objects whose removal
/// was not durable exist again. Objects that were not finished are always lost.
class MemoryPowerCutTest : public ::testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  static void Run(const Prepared& prepared, uint64_t stride) {
    const auto [is_performed, restores_removed] = GetParam();
    RunWithEachFault(prepared, StorageFault::kPowerCut, stride, [&](uint64_t index) {
      const auto plan = [=, performed = is_performed](const StorageCall& call) {
        if (call.index < index) return StorageFault::kNone;
        return performed && call.index == index ? StorageFault::kLoseResponse
                                                : StorageFault::kPowerCut;
      };
      RunWithFaults(prepared, plan, restores_removed);
    });
  }
};

TEST_P(MemoryPowerCutTest, LeavesEveryAcknowledgedStep) {
  for (const Scenario& scenario : SmallScenarios()) {
    Run(Prepared(scenario), Stride(4));
    if (HasFailure()) return;
  }
}

TEST_P(MemoryPowerCutTest, LeavesEveryAcknowledgedStepOfALongHistory) {
  Run(Prepared(LongHistory()), Stride(7));
}

INSTANTIATE_TEST_SUITE_P(Cuts, MemoryPowerCutTest,
                         ::testing::Combine(::testing::Bool(), ::testing::Bool()),
                         [](const auto& info) {
                           return fmt::format(
                               "{}{}", std::get<0>(info.param) ? "AfterACall" : "BeforeACall",
                               std::get<1>(info.param) ? "RestoresRemoved" : "");
                         });

// --- listings

// Number of puts that listings omit, and of removals that they do not show yet.
class StaleListingTest : public ::testing::TestWithParam<std::tuple<size_t, size_t>> {};

TEST_P(StaleListingTest, LosesNothing) {
  const auto [omitted_puts, kept_removals] = GetParam();
  std::vector<Scenario> scenarios = SmallScenarios();
  scenarios.push_back(LongHistory());
  for (const Scenario& scenario : scenarios) {
    SCOPED_TRACE(scenario.name);
    const auto base = std::make_shared<MemoryStorage>("stale");
    const auto storage = std::make_shared<FaultyStorage>(base);
    Progress progress;
    CAIRN_ASSERT_OK_AND_ASSIGN(progress.acknowledged, scenario.prepare(storage));
    storage->SetStaleListing(omitted_puts, kept_removals);
    scenario.run(storage, kPatient, progress);
    EXPECT_FALSE(progress.error.has_value()) << progress.error->ToString();
    CheckStore(storage, progress, /*listings_are_late=*/true);
    CheckStore(base, progress);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Counts, StaleListingTest,
                         ::testing::Combine(::testing::Values(0, 1, 5, 100'000),
                                            ::testing::Values(0, 1, 100'000)),
                         [](const auto& info) {
                           return fmt::format("Omits{}Keeps{}", std::get<0>(info.param),
                                              std::get<1>(info.param));
                         });

TEST(SlowListingTest, ChangesNothing) {
  for (const Scenario& scenario : SmallScenarios()) {
    const Prepared prepared(scenario);
    const auto base = CopyOf(*prepared.store);
    const auto storage = std::make_shared<FaultyStorage>(base);
    storage->SetDelay(milliseconds(20));
    storage->SetPlan([](const StorageCall& call) {
      return call.operation == StorageOperation::kList ? StorageFault::kDelay : StorageFault::kNone;
    });
    Progress progress{.acknowledged = prepared.before};
    prepared.scenario.run(storage, kPatient, progress);
    EXPECT_FALSE(progress.error.has_value());
    CheckStore(base, progress);
    if (HasFailure()) return;
  }
}

// --- another writer

/// A complete open for writing, save of step 90 and close by another process.
Result<void> SaveByOther(const std::shared_ptr<Storage>& storage) {
  StoreOptions options = SmallBlocks();
  options.take_over = true;
  CAIRN_TRY_ASSIGN(const auto store, Store::Open(storage, OpenMode::kWrite, options));
  CAIRN_TRY(SaveSample(*store, MakeSample(90, 0, kFaultShape)));
  return store->Close();
}

/// Runs the other writer at one call of the scenario.
void RunWithOtherWriter(const Prepared& prepared, uint64_t index, milliseconds patience) {
  const auto base = CopyOf(*prepared.store);
  const auto storage = std::make_shared<FaultyStorage>(base);
  Progress progress{.acknowledged = prepared.before};
  storage->SetPlan([&](const StorageCall& call) {
    if (call.index == index) {
      EXPECT_TRUE(IsOk(SaveByOther(base)));
      progress.other_writer = true;
    }
    return StorageFault::kNone;
  });
  prepared.scenario.run(storage, patience, progress);
  if (!progress.other_writer && patience == kImpatient) {  // the ranks were too slow
    return RunWithOtherWriter(prepared, index, kPatient);
  }
  ASSERT_TRUE(progress.other_writer);
  if (progress.error) {
    // Ranks find that the session is closed, or miss their parts.
    EXPECT_THAT(progress.error->code, AnyOf(ErrorCode::kConflict, ErrorCode::kUnavailable,
                                            ErrorCode::kFailedPrecondition))
        << progress.error->ToString();
  }
  progress.acknowledged[90] = MakeSample(90, 0, kFaultShape);
  if (progress.in_doubt) (*progress.in_doubt)[90] = progress.acknowledged[90];
  CheckStore(base, progress);
}

TEST(OtherWriterTest, LosesNothingAtAnyCallOfTheFirst) {
  for (const Scenario& scenario : SmallScenarios()) {
    if (std::string_view(scenario.name) == "take-over") continue;  // it has another one
    const Prepared prepared(scenario);
    RunWithEachFault(prepared, StorageFault::kNone, 1,
                     [&](uint64_t index) { RunWithOtherWriter(prepared, index, kImpatient); });
    if (HasFailure()) return;
  }
}

TEST(OtherWriterTest, ReaderOfAStoreThatIsBeingCreatedSeesNoDamage) {
  for (uint64_t index = 0;; ++index) {
    const auto base = std::make_shared<MemoryStorage>("test");
    const auto storage = std::make_shared<FaultyStorage>(base);
    storage->SetPlan([&](const StorageCall& call) {
      if (call.index == index) {
        EXPECT_TRUE(IsOk(SaveByOther(base)));
      }
      return StorageFault::kNone;
    });
    const auto reader = Store::Open(storage, OpenMode::kRead, SmallBlocks());
    if (reader) {
      CAIRN_EXPECT_OK(LoadAllFrom(**reader));
    } else {
      EXPECT_THAT(reader, IsError(ErrorCode::kNotFound, "no store here"));
    }
    if (storage->Log().size() <= index) break;
  }
}

// --- readers

TEST(ReaderFaultTest, ReadersWriteNothingAndReturnErrorsOrTheTruth) {
  const Prepared prepared(LongHistory());
  const auto run = [&](const std::shared_ptr<FaultyStorage>& storage) -> Result<void> {
    CAIRN_TRY_ASSIGN(const auto reader, Store::Open(storage, OpenMode::kRead, SmallBlocks()));
    CAIRN_TRY_ASSIGN(const Steps steps, LoadAllFrom(*reader));
    EXPECT_TRUE(steps == prepared.before);
    return {};
  };
  for (uint64_t index = 0;; index += Stride(5)) {
    const auto storage = std::make_shared<FaultyStorage>(prepared.store);
    storage->SetPlan(FaultAt(index, StorageFault::kRefuse));
    const Result<void> read = run(storage);
    for (const StorageCall& call : storage->Log()) {
      EXPECT_THAT(call.operation, AnyOf(StorageOperation::kReadRange, StorageOperation::kSize,
                                        StorageOperation::kList));
    }
    if (storage->Log().size() <= index) break;
    EXPECT_THAT(read, IsError(ErrorCode::kUnavailable, "injected fault")) << "call " << index;
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace cairn::kv
