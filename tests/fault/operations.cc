// The operations under test.

#include "tests/fault/operations.h"

#include <array>
#include <chrono>
#include <cstdlib>

#include "kv/base/options.h"
#include "kv/compact.h"
#include "kv/read/snapshot.h"
#include "kv/store.h"

namespace cairn::kv::testing {

const char* OperationName(Operation operation) {
  switch (operation) {
    case Operation::kCommit:
      return "commit";
    case Operation::kOverwrite:
      return "overwrite";
    case Operation::kDelete:
      return "delete";
    case Operation::kDeleteMany:
      return "delete-many";
    case Operation::kRanks:
      return "ranks";
    case Operation::kCompact:
      return "compact";
  }
  return "unknown";
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
  switch (operation) {
    case Operation::kCommit:
      CAIRN_TRY(SaveSample(store, MakeSample(4)));
      return {};
    case Operation::kOverwrite:
      CAIRN_TRY(SaveSample(store, MakeSample(2, 2), /*overwrite=*/true));
      return {};
    case Operation::kDelete:
      CAIRN_TRY(store.Delete(std::array<uint64_t, 1>{1}));
      return {};
    case Operation::kDeleteMany:
      CAIRN_TRY(store.Delete(std::array<uint64_t, 2>{1, 3}));
      return {};
    case Operation::kRanks: {
      StoreOptions join = SmallBlocks();
      CAIRN_TRY_ASSIGN(join.session, store.OpenSession());
      std::vector<std::unique_ptr<Store>> others(2);
      for (auto& other : others) {
        CAIRN_TRY_ASSIGN(other, Store::Open(store.directory(), OpenMode::kJoinSession, join));
      }
      CAIRN_TRY(SaveSampleByRanks(store, others, MakeSample(4)));
      return {};
    }
    case Operation::kCompact:
      CAIRN_TRY(Compact(store, {.max_dead = 0}));
      return {};
  }
  return {};
}

Steps After(Operation operation, Steps before) {
  switch (operation) {
    case Operation::kCommit:
    case Operation::kRanks:
      before[4] = MakeSample(4);
      break;
    case Operation::kOverwrite:
      before[2] = MakeSample(2, 2);
      break;
    case Operation::kDelete:
      before.erase(1);
      break;
    case Operation::kDeleteMany:
      before.erase(1);
      before.erase(3);
      break;
    case Operation::kCompact:
      break;
  }
  return before;
}

}  // namespace cairn::kv::testing
