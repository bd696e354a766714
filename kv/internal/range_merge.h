#pragma once
/// What a merging rank does for a step, between its part and the decision (merging_ranks.h).

#include <cstdint>

#include "kv/error.h"
#include "kv/internal/commit/store_state.h"
#include "kv/options.h"
#include "kv/step_records.h"

namespace cairn::kv::internal {

/// See Store::MergeRange.
Result<void> MergeRange(StoreState& state, uint64_t step, const BeginOptions& options,
                        RangeRecords& records);

}  // namespace cairn::kv::internal
