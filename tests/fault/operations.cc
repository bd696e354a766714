// The operations under test.

#include "tests/fault/operations.h"

#include <array>
#include <chrono>
#include <cstdlib>
#include <map>

#include "kv/base/options.h"
#include "kv/compact.h"
#include "kv/read/snapshot.h"
#include "kv/store.h"
#include "tests/support/without_value.h"

namespace cairn::kv::testing {

namespace {

using cairn::testing::WithoutValue;

struct Definition {
  const char* name = "";
  Result<void> (*perform)(Store& store) = nullptr;
  void (*apply)(Steps& steps) = nullptr;
};

Result<void> SaveByThreeRanks(Store& store) {
  StoreOptions join = SmallBlocks();
  CAIRN_TRY_ASSIGN(join.session, store.OpenSession());
  std::vector<std::unique_ptr<Store>> others(2);
  for (auto& other : others) {
    CAIRN_TRY_ASSIGN(other, Store::Open(store.directory(), OpenMode::kJoinSession, join));
  }
  return WithoutValue(SaveSampleByRanks(store, others, MakeSample(4)));
}

const Definition& DefinitionOf(Operation operation) {
  static const std::map<Operation, Definition> definitions = {
      {Operation::kCommit,
       {"commit", [](Store& store) { return WithoutValue(SaveSample(store, MakeSample(4))); },
        [](Steps& steps) { steps[4] = MakeSample(4); }}},
      {Operation::kOverwrite,
       {"overwrite",
        [](Store& store) {
          return WithoutValue(SaveSample(store, MakeSample(2, 2), /*overwrite=*/true));
        },
        [](Steps& steps) { steps[2] = MakeSample(2, 2); }}},
      {Operation::kDelete,
       {"delete",
        [](Store& store) { return WithoutValue(store.Delete(std::array<uint64_t, 1>{1})); },
        [](Steps& steps) { steps.erase(1); }}},
      {Operation::kDeleteMany,
       {"delete-many",
        [](Store& store) { return WithoutValue(store.Delete(std::array<uint64_t, 2>{1, 3})); },
        [](Steps& steps) {
          for (const uint64_t step : {1, 3}) steps.erase(step);
        }}},
      {Operation::kRanks,
       {"ranks", &SaveByThreeRanks, [](Steps& steps) { steps[4] = MakeSample(4); }}},
      {Operation::kCompact,
       {"compact", [](Store& store) { return WithoutValue(Compact(store, {.max_dead = 0})); },
        [](Steps&) {}}},
  };
  return definitions.at(operation);
}

}  // namespace

const char* OperationName(Operation operation) { return DefinitionOf(operation).name; }

std::optional<Operation> OperationNamed(std::string_view name) {
  for (const Operation operation : kOperations) {
    if (name == OperationName(operation)) return operation;
  }
  return std::nullopt;
}

StoreOptions SmallBlocks() {
  StoreOptions options;
  const bool have_files = std::getenv("CAIRN_TEST_STORES") == nullptr;
  if (have_files) options.io = {.block_bytes = 64 << 10, .queue_depth = 3};
  options.grace = std::chrono::milliseconds(0);
  return options;
}

Result<Steps> MakeHistory(const std::string& directory) {
  CAIRN_TRY_ASSIGN(const auto store, Store::Open(directory, OpenMode::kWrite, SmallBlocks()));
  Steps steps;
  for (const auto& [step, version] : {std::pair{1, 0}, {2, 0}, {3, 0}, {2, 1}}) {
    SampleStep sample = MakeSample(step, version);
    CAIRN_TRY(SaveSample(*store, sample, /*overwrite=*/version > 0));
    steps[sample.step] = std::move(sample);
  }
  CAIRN_TRY(store->Close());
  return steps;
}

Result<void> Perform(Operation operation, Store& store) {
  return DefinitionOf(operation).perform(store);
}

Steps After(Operation operation, Steps before) {
  DefinitionOf(operation).apply(before);
  return before;
}

}  // namespace cairn::kv::testing
