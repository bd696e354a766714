// The operations under test.

#include "tests/fault/operations.h"

#include <array>
#include <chrono>
#include <cstdlib>
#include <map>
#include <span>

#include "kv/compact.h"
#include "kv/read/snapshot.h"
#include "kv/storage/open/open_storage.h"
#include "tests/support/scoped_temp_dir.h"
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

Result<Steps> MakeHistory(const std::shared_ptr<Storage>& storage, const SampleShape& shape) {
  CAIRN_TRY_ASSIGN(const auto store, Store::Open(storage, OpenMode::kWrite, SmallBlocks()));
  Steps steps;
  for (const auto& [step, version] : {std::pair{1, 0}, {2, 0}, {3, 0}, {2, 1}}) {
    steps[step] = MakeSample(step, version, shape);
    CAIRN_TRY(SaveSample(*store, steps[step], /*overwrite=*/version > 0));
  }
  CAIRN_TRY(store->Close());
  return steps;
}

Result<Steps> MakeHistory(const std::string& directory) {
  CAIRN_TRY_ASSIGN(const auto storage, OpenStorage(directory));
  return MakeHistory(storage);
}

Result<void> PlantGarbage(Storage& storage) {
  for (const char* name : {"segments/00000001-0123456789abcdef00000000.seg",
                           "tables/00000001-0123456789abcdef00000000.sst",
                           "pages/00000001-0123456789abcdef00000000.steps",
                           "pending/00000001000000000000000000000000-7-0/1.part",
                           "pending/00000001000000000000000000000000-7-0/failed",
                           "leases/00000001000000000000000000000000"}) {
    CAIRN_TRY(storage.Put(name, std::as_bytes(std::span("garbage", 7))));
  }
  if (storage.local_files() == nullptr) return {};
  for (const char* name :
       {"tables/.0123456789abcdef.tmp", "roots/.0123456789abcdef.tmp", ".0123456789abcdef.tmp"}) {
    cairn::testing::WriteText(storage.address() + "/" + name, "garbage");
  }
  return {};
}

Result<void> Perform(Operation operation, Store& store) {
  return DefinitionOf(operation).perform(store);
}

Steps After(Operation operation, Steps before) {
  DefinitionOf(operation).apply(before);
  return before;
}

}  // namespace cairn::kv::testing
