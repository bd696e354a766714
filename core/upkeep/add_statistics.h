#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Computes statistics that saves have not recorded.

#include <cstdint>
#include <span>

#include "core/base/progress.h"
#include "core/checkpoint_store.h"
#include "kv/base/error.h"

namespace cairn::core {

struct AddStatisticsReport {
  uint64_t chunks = 0;  // chunks of which statistics were computed, equal ones once
  uint64_t bytes = 0;   // length of these
  uint64_t steps = 0;   // steps whose records have more statistics now
};

/// Reads the chunks of `steps` that have no statistics, and adds to their records what a save with
/// SaveOptions::statistics records. Nothing else of the steps changes. Commits after each step, and
/// each time that 16 GiB were read: after an error, what was committed remains, and a repeated call
/// continues. `progress` receives bytes; their total is a limit, because bytes that steps share are
/// read once. Not collective. Memory: 32 MiB or the largest chunk, and 300 bytes per chunk without
/// statistics.
///
/// kNotFound: there is no such step. kFailedPrecondition: the store is open for reading, or a
/// compaction is running. kCancelled: `progress` asked to stop. Other errors: see
/// CheckpointStore::Load and kv::Compact.
Result<AddStatisticsReport> AddStatistics(CheckpointStore& store, std::span<const uint64_t> steps,
                                          const Progress& progress = {});

}  // namespace cairn::core
