#pragma once
/// Stores in all kinds of storages, for the tests of copies.

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kv/copy_steps.h"
#include "kv/root/internal/root_log.h"
#include "kv/storage/files/internal/directory_storage.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "kv/store.h"
#include "tests/kv/sample_step.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/result_matchers.h"

namespace cairn::kv::testing {

/// Small blocks, so that a segment needs several requests, and no grace period.
inline StoreOptions SmallCopyBlocks() {
  return {.io = IoOptions{.block_bytes = 64 << 10, .queue_depth = 3},
          .grace = std::chrono::milliseconds(0)};
}

/// Opens the store. Takes over a lease, as the user does after a crash.
inline Result<std::unique_ptr<Store>> OpenCopyStore(const std::shared_ptr<Storage>& storage,
                                                    OpenMode mode) {
  StoreOptions options = SmallCopyBlocks();
  options.take_over = true;
  return Store::Open(storage, mode, options);
}

/// Saves steps 1, 2 and 3. Steps 2 and 3 share segments with the steps before them.
inline Result<void> SaveThreeSteps(const std::shared_ptr<Storage>& storage,
                                   const SampleShape& shape = {}) {
  CAIRN_TRY_ASSIGN(const auto store, OpenCopyStore(storage, OpenMode::kWrite));
  for (const uint64_t step : {1, 2, 3}) CAIRN_TRY(SaveSample(*store, MakeSample(step, 0, shape)));
  return {};
}

/// Returns the contents of all steps.
inline Result<Steps> LoadSteps(const std::shared_ptr<Storage>& storage) {
  CAIRN_TRY_ASSIGN(const auto store, Store::Open(storage, OpenMode::kRead, SmallCopyBlocks()));
  return LoadAllFrom(*store);
}

/// Returns the names of the segments.
inline std::set<std::string> SegmentNames(Storage& storage) {
  const auto names = storage.List("segments/");
  EXPECT_TRUE(cairn::testing::IsOk(names));
  return {names->begin(), names->end()};
}

/// Returns the names in the newest root's list of removed and announced objects.
inline std::set<std::string> ListedNames(Storage& storage) {
  const auto root = internal::FindNewest(storage);
  EXPECT_TRUE(cairn::testing::IsOk(root));
  std::set<std::string> names;
  for (const auto& object : (*root)->removed) names.insert(object.name);
  return names;
}

/// Opens both stores and copies.
inline Result<CopyReport> OpenAndCopy(const std::shared_ptr<Storage>& source,
                                      const std::shared_ptr<Storage>& target,
                                      const CopyOptions& options) {
  CAIRN_TRY_ASSIGN(const auto from, OpenCopyStore(source, OpenMode::kRead));
  CAIRN_TRY_ASSIGN(const auto to, OpenCopyStore(target, OpenMode::kWrite));
  return CopySteps(*from, *to, options);
}

}  // namespace cairn::kv::testing
