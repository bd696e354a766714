// Goal: whatever happens to one call of the storage during a rebuild, the rebuild or one that
// follows it recovers the same steps as a rebuild without faults.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kv/base/options.h"
#include "kv/read/snapshot.h"
#include "kv/root/internal/root_log.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "kv/store.h"
#include "tests/fault/operations.h"
#include "tests/fault/storage_scenarios.h"
#include "tests/kv/store_checks.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/result_matchers.h"

namespace cairn::kv {
namespace {

using cairn::testing::IsError;
using internal::CanHappen;
using internal::FaultyStorage;
using internal::MemoryStorage;
using internal::StorageCall;
using internal::StorageFault;
using internal::StorageFaultName;
using ::testing::IsEmpty;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

using Records = std::map<std::string, std::vector<std::byte>>;  // chunk records by key
using Contents = std::map<uint64_t, Records>;                   // by step

/// Reads the chunk records of all steps, and checks everything. A step that was recovered from
/// footers has no values, so it cannot be compared as a sample.
Result<Contents> Read(const std::shared_ptr<Storage>& storage) {
  CAIRN_TRY_ASSIGN(const auto snapshot, ReadLatest(storage, SmallBlocks()));
  CAIRN_TRY_ASSIGN(const auto damage, Verify(*snapshot));
  EXPECT_THAT(damage, IsEmpty());
  Contents contents;
  for (const uint64_t step : snapshot->step_numbers()) {
    CAIRN_TRY_ASSIGN(const StepInfo info, snapshot->FindStep(step));
    Records& records = contents[step];
    CAIRN_TRY(snapshot->Scan(
        Column::kChunks, info, "",
        [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
          records[std::string(key)].assign(record.begin(), record.end());
          return true;
        }));
  }
  return contents;
}

struct DamageCase {
  const char* name;
  std::function<void(Storage&)> apply;
};

void CutNewestRoot(Storage& storage) {
  const uint64_t newest = internal::ListRoots(storage).value().back();
  EXPECT_TRUE(storage.Put(internal::RootName(newest), {}).has_value());
}

const DamageCase kDamages[] = {
    {"NewestRoot", CutNewestRoot},
    {"AllRoots", [](Storage& storage) { RemoveObjects(storage, "roots/"); }},
    {"OneTable",
     [](Storage& storage) {
       const std::vector<std::string> names = storage.List("tables/").value();
       EXPECT_TRUE(storage.Remove(names.front()).has_value());
     }},
    {"RootsAndTables",
     [](Storage& storage) {
       RemoveObjects(storage, "roots/");
       RemoveObjects(storage, "tables/");
     }},
};

class RebuildFaultTest : public ::testing::TestWithParam<DamageCase> {
 protected:
  void SetUp() override {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store,
                               Store::Open(damaged_, OpenMode::kWrite, SmallBlocks()));
    for (const uint64_t step : {1, 2, 3, 4}) {
      CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(step, 0, kFaultShape)));
    }
    CAIRN_ASSERT_OK(store->Close());
    GetParam().apply(*damaged_);
    const auto base = CopyOf(*damaged_);
    const auto storage = std::make_shared<FaultyStorage>(base);
    CAIRN_ASSERT_OK(Store::Rebuild(storage, SmallBlocks()));
    calls_ = storage->Log();
    CAIRN_ASSERT_OK_AND_ASSIGN(expected_, Read(base));
    EXPECT_GE(expected_.size(), 1u);
  }

  /// Rebuilds with a fault at one call, and again without faults if that did not succeed.
  void RunWithFault(uint64_t index, StorageFault fault) {
    const auto base = CopyOf(*damaged_);
    {
      const auto storage = std::make_shared<FaultyStorage>(base);
      storage->SetPlan(internal::FaultAt(index, fault));
      const auto first = Store::Rebuild(storage, SmallBlocks());
      storage->SetPlan({});
      if (!first) {
        const auto second = Store::Rebuild(base, SmallBlocks());
        if (!second) {
          EXPECT_THAT(second, IsError(ErrorCode::kFailedPrecondition, "nothing to rebuild"));
        }
      }
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(const Contents found, Read(base));
    EXPECT_TRUE(found == expected_) << found.size() << " steps";
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store,
                               Store::Open(base, OpenMode::kWrite, SmallBlocks()));
    CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(9, 0, kFaultShape)));
  }

  const std::shared_ptr<MemoryStorage> damaged_ = std::make_shared<MemoryStorage>("damaged");
  std::vector<StorageCall> calls_;  // of a rebuild without faults
  Contents expected_;
};

TEST_P(RebuildFaultTest, RecoversTheSameSteps) {
  uint64_t count = 0;
  for (const StorageFault fault :
       {StorageFault::kRefuse, StorageFault::kLoseResponse, StorageFault::kLoseWrite,
        StorageFault::kConflict, StorageFault::kTear, StorageFault::kPowerCut}) {
    for (const StorageCall& call : calls_) {
      if (!CanHappen(fault, call.operation)) continue;
      SCOPED_TRACE(fmt::format("{} at call {}, {} {}", StorageFaultName(fault), call.index,
                               StorageOperationName(call.operation), call.name));
      RunWithFault(call.index, fault);
      if (HasFailure()) return;
      ++count;
    }
  }
  fmt::print("{} faults in {} calls, {} steps\n", count, calls_.size(), expected_.size());
}

INSTANTIATE_TEST_SUITE_P(Damages, RebuildFaultTest, ::testing::ValuesIn(kDamages),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace cairn::kv
