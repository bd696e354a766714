#pragma once
/// Writing one state dict as one step.

#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/chunk_grid.h"
#include "core/internal/aliases.h"
#include "core/internal/worker_pool.h"

namespace cairn::core::internal {

/// Largest chunk that a save may be asked for: page digests of one chunk are held in memory.
inline constexpr uint64_t kMaxChunkBytes = uint64_t{1} << 30;

/// From here on a tensor's payload starts on 4 KiB; staged alike, it is written as it lies.
inline constexpr uint64_t kLargeTensorBytes = 64 << 10;

/// A state dict ready to be written: checked, flattened, owners and aliases decided.
struct SavePlan {
  std::vector<PlannedTensor> tensors;  // key order
  std::vector<ChunkGrid> grids;        // of each tensor; those of aliases are empty
  std::vector<std::pair<std::string, std::vector<std::byte>>> values;  // key order; records
  std::vector<std::byte> structure;
  uint64_t tensor_count = 0;  // leaves; hidden ones not counted
  uint64_t logical_bytes = 0;
};

/// What a save wrote, chunk by chunk, for the one after it to find out what has not changed before
/// it copies anything. Some 30 bytes a chunk.
struct SavedChunks {
  struct Chunk {
    kv::Digest digest;
    bool reused = false;  // was that of the base already
  };
  struct Tensor {
    std::string fqn;
    DType dtype = DType::kUnknown;
    Shape shape;
    std::vector<Chunk> chunks;  // in the order of the grid
  };
  kv::StepInfo step;
  uint64_t chunk_bytes = 0;
  std::vector<Tensor> tensors;  // key order
};

/// kInvalidArgument: duplicate FQNs, NUL, bad tensors, too large values; names the key.
Result<SavePlan> PlanSave(const StateDict& state, const SaveOptions& options);

/// Writes the plan. Requires that no other save of this store runs. `pool` digests. Fills `saved`,
/// if given, on success. kConflict: chunks that the plan takes for the base's are not, as the base
/// was deleted or replaced meanwhile.
Result<SaveReport> RunSave(kv::Store& store, uint64_t step, const SavePlan& plan,
                           const SaveOptions& options, WorkerPool& pool,
                           SavedChunks* saved = nullptr);

}  // namespace cairn::core::internal
