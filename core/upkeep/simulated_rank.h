#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Simulates one rank of a job of any size in one process, to show what the rank would write and to
/// measure how rank 0 handles the parts of thousands of ranks.

#include <cstdint>
#include <string>

#include "core/save/save_options.h"
#include "core/state_dict/state_dict.h"
#include "kv/store.h"

namespace cairn::core {

/// A rank's part of an attempt to save a step.
struct SimulatedPart {
  uint64_t step = 0;
  std::string attempt;  // from kv::Store::NextAttempt, which returns the same on every rank
  uint32_t rank = 1;    // any rank except 0
  uint32_t world_size = 2;
};

/// Writes the part durably and returns without waiting for rank 0's decision. `joined` is a store
/// that was opened with OpenMode::kJoinSession. Errors: see CheckpointStore::Save.
Result<void> PrepareRank(kv::Store& joined, const SimulatedPart& part, const StateDict& state,
                         const SaveOptions& options);

}  // namespace cairn::core
