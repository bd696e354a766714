#pragma once
/// The operations whose failures and crashes are tested, on a store with a known history.

#include <map>
#include <string>
#include <vector>

#include "kv/options.h"
#include "kv/store.h"
#include "tests/kv/sample_step.h"

namespace cairn::kv::testing {

enum class Operation { kCommit, kOverwrite, kDelete, kDeleteMany, kRanks };
inline constexpr Operation kOperations[] = {Operation::kCommit, Operation::kOverwrite,
                                            Operation::kDelete, Operation::kDeleteMany,
                                            Operation::kRanks};
const char* OperationName(Operation operation);

using Steps = std::map<uint64_t, SampleStep>;

/// Steps 1, 2 and 3, of which 2 was overwritten and 3 refers to bytes of 1. Blocks are small, so
/// that a segment takes several writes.
StoreOptions SmallBlocks();
Result<Steps> MakeHistory(const std::string& directory);

/// Does it: saves step 4, overwrites step 2, deletes step 1, deletes steps 1 and 3, or saves step 4
/// by three ranks, which are in this process and take turns.
Result<void> Perform(Operation operation, Store& store);
/// What the store then holds, if it held `before`.
Steps After(Operation operation, Steps before);

}  // namespace cairn::kv::testing
