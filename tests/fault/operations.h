#pragma once
/// The operations whose failures and crashes are tested, on a store with a known history.

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kv/base/options.h"
#include "kv/storage/storage.h"
#include "kv/store.h"
#include "tests/kv/sample_step.h"

namespace cairn::kv::testing {

enum class Operation { kCommit, kOverwrite, kDelete, kDeleteMany, kRanks, kCompact };
inline constexpr Operation kOperations[] = {Operation::kCommit, Operation::kOverwrite,
                                            Operation::kDelete, Operation::kDeleteMany,
                                            Operation::kRanks,  Operation::kCompact};
const char* OperationName(Operation operation);
std::optional<Operation> OperationNamed(std::string_view name);
/// Returns the name of the test of an operation.
inline constexpr auto kOperationTestName = [](const auto& info) {
  std::string name = OperationName(info.param);
  std::erase(name, '-');
  return name;
};

/// What the loops of store_program save: small, so that most of the time is spent in the commit
/// protocol.
inline constexpr SampleShape kLoopShape{.tensor_count = 4, .largest_bytes = 60'000};

/// Small blocks, so that a segment needs several writes, and no grace period, so that objects that
/// nothing uses any more vanish at once. The usual blocks if CAIRN_TEST_STORES is set: a storage
/// without files has a minimum.
StoreOptions SmallBlocks();
/// Saves steps 1, 2 and 3, of which 2 was overwritten and 3 refers to bytes of 1.
Result<Steps> MakeHistory(const std::shared_ptr<Storage>& storage, const SampleShape& shape = {});
Result<Steps> MakeHistory(const std::string& directory);

/// Adds what a writer of an older epoch leaves if it crashes: objects of all kinds, and temporary
/// files where objects are files. An open for writing removes them.
Result<void> PlantGarbage(Storage& storage);

/// Performs the operation: saves step 4, overwrites step 2, deletes step 1, deletes steps 1 and 3,
/// saves step 4 from three ranks, which take turns in this process, or rewrites all segments.
Result<void> Perform(Operation operation, Store& store);
/// Returns the steps after the operation, if the store had `before`.
Steps After(Operation operation, Steps before);

}  // namespace cairn::kv::testing
