#pragma once
/// One rank of a job of any size, without the job: to see what it would write, and to measure what
/// thousands of ranks do to rank 0.

#include <string>

#include "core/save/save_options.h"
#include "core/state_dict/state_dict.h"
#include "kv/store.h"


namespace cairn::core {

/// What a rank would write, from its state alone.
struct RankShare {
  uint64_t bytes = 0;
  uint64_t chunks = 0;
  uint64_t tensors = 0;  // of which it writes something
};
/// Errors as CheckpointStore::Save. Tensors need addresses, but no memory behind them.
Result<RankShare> PlanRank(const StateDict& state, const SaveOptions& options, uint32_t rank,
                           uint32_t world_size);

/// Writes a rank's part of an attempt at `step`, durably, and does not wait for the outcome.
/// `joined` is a store open with OpenMode::kJoinSession, `attempt` what NextAttempt says on every rank.
/// Only `rank` 1 and up. Errors as CheckpointStore::Save.
Result<void> PrepareRank(kv::Store& joined, uint64_t step, const std::string& attempt,
                        const StateDict& state, const SaveOptions& options, uint32_t rank,
                        uint32_t world_size);

}  // namespace cairn::core
