#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Adds statistics to the records of chunks of a committed step.

#include <string>
#include <unordered_map>

#include "kv/base/chunk_record.h"
#include "kv/base/error.h"
#include "kv/base/step_info.h"

namespace cairn::kv {

class Store;

/// Statistics of the chunks of one step, by key.
using StatisticsOfChunks = std::unordered_map<std::string, ChunkStatistics>;

/// Adds the statistics to the records of `step` that have none, in one commit. Nothing else of the
/// step changes: it keeps its generation. Returns whether the step was written; not if it was
/// deleted or replaced since it was found. Memory: 64 MiB per table that is compared. Returns the
/// errors of Compact, except kCancelled.
Result<bool> RecordStatistics(Store& store, const StepInfo& step,
                              const StatisticsOfChunks& statistics);

}  // namespace cairn::kv
