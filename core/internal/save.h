#pragma once
/// Writing one state dict as one step.

#include <chrono>
#include <string>
#include <vector>

#include "core/internal/save_plan.h"
#include "core/internal/worker_pool.h"

namespace cairn::core::internal {

/// What a save wrote, chunk by chunk, for the one after it to find out what has not changed before
/// it copies anything. Some 30 bytes a chunk.
struct SavedChunks {
  struct Chunk {
    kv::Digest digest;
    bool reused = false;  // was that of the base already
  };
  struct Piece {
    std::string fqn;
    DType dtype = DType::kUnknown;
    Box box;
    uint64_t first_chunk = 0;
    std::vector<Chunk> chunks;  // from first_chunk on, in the order of the grid
  };
  kv::StepInfo step;
  uint64_t chunk_bytes = 0;
  std::vector<Piece> pieces;  // as in the plan
};

/// The attempt that a save makes; named by Store::NextAttempt where there are several ranks.
struct SaveAttempt {
  uint64_t step = 0;
  std::string name;
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  /// Until when ranks wait to hear from rank 0, which may commit until `deadline`, and longer if it
  /// has begun to.
  std::chrono::steady_clock::time_point outcome_deadline =
      std::chrono::steady_clock::time_point::max();
  uint64_t turn = 0;  // SaveTurns; several ranks
  bool wait = true;   // false: a rank but the first returns once its part is durable
};

/// Writes the plan. Requires that no other save of this store runs. `pool` digests. Fills `saved`,
/// if given, on success. kConflict: chunks that the plan takes for the base's are not, as the base
/// was deleted or replaced meanwhile. Several ranks: as StepWriter::Gather and AwaitOutcome; and
/// kInvalidArgument on all of them where their parts do not make whole tensors or do not agree.
Result<SaveReport> RunSave(kv::Store& store, const SaveAttempt& attempt, const SavePlan& plan,
                           const RankPlace& place, const SaveOptions& options, WorkerPool& pool,
                           SavedChunks* saved = nullptr);

}  // namespace cairn::core::internal
