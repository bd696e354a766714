#pragma once
/// Writing one state dict as one step.

#include "core/checkpoint_store.h"
#include "core/internal/aliases.h"
#include "core/internal/worker_pool.h"

namespace cairn::core::internal {

/// Largest chunk that a save may be asked for: page digests of one chunk are held in memory.
inline constexpr uint64_t kMaxChunkBytes = uint64_t{1} << 30;

/// A state dict ready to be written: checked, flattened, owners and aliases decided.
struct SavePlan {
  std::vector<PlannedTensor> tensors;                                  // key order
  std::vector<std::pair<std::string, std::vector<std::byte>>> values;  // key order; records
  std::vector<std::byte> structure;
  uint64_t tensor_count = 0;  // leaves; hidden ones not counted
  uint64_t logical_bytes = 0;
};

/// kInvalidArgument: duplicate FQNs, NUL, bad tensors, too large values; names the key.
Result<SavePlan> PlanSave(const StateDict& state, const SaveOptions& options);

/// Writes the plan. Requires that no other save of this store runs. `pool` digests.
Result<SaveReport> RunSave(kv::Store& store, uint64_t step, SavePlan plan,
                           const SaveOptions& options, WorkerPool& pool);

}  // namespace cairn::core::internal
