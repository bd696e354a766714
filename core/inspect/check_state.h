#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Whether a state in memory equals a step.

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/progress.h"
#include "core/device/device.h"
#include "core/state_dict/state_dict.h"
#include "core/step/contents.h"
#include "kv/store.h"

namespace cairn::core {

/// The result of CheckState. All keys are in key order.
struct StateCheck {
  using Finding = std::pair<std::string, std::string>;  // an FQN, and what was found

  std::vector<Finding> different;
  std::vector<Finding> not_comparable;  // another dtype, for example
  std::vector<std::string> missing;     // keys of the state that the step lacks
  std::vector<std::string> unexpected;  // keys of the step that the state lacks
  uint64_t compared_bytes = 0;          // memory that was compared
  uint64_t different_bytes = 0;         // of the pages that differ
  uint64_t bytes_read = 0;              // from storage, without records
};

/// Compares what `rank` holds of `state` with `contents`, which may be a part of a step. Memory is
/// digested page by page and compared with the digests of the step, which are those of a chunk's
/// final bytes, also if it is stored as deltas. The step has no digests of the part of a
/// page that a rank holds, and none of a strided part of shared memory: their payload is read.
///
/// kDataLoss: records, or payload that is read, are damaged. kInvalidArgument: see ShardViewsOf.
/// kNotFound: the step was deleted. kCancelled: `progress` asked to stop. Requires memory that does
/// not change during the call. Memory: 64 MiB, and 8 bytes per page of what differs.
Result<StateCheck> CheckState(const kv::Store& store, const Contents& contents,
                              const StateDict& state, uint32_t rank, const Progress& progress = {},
                              std::span<const DeviceStream> streams = {});

}  // namespace cairn::core
