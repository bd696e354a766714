#pragma once
/// Rank 0's side of the parts of the other ranks (rank_parts.h): waits for them, and adds their
/// records to the step.

#include "kv/base/error.h"
#include "kv/base/step_info.h"
#include "kv/commit/internal/step_attempt.h"

namespace cairn::kv::internal {

/// See StepWriter::Gather.
Result<void> GatherParts(StepAttempt& attempt, RankRecords& others);

}  // namespace cairn::kv::internal
