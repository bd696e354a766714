#pragma once
/// The commit of a step: its table, and the next root.

#include "kv/base/error.h"
#include "kv/base/step_info.h"
#include "kv/commit/internal/step_attempt.h"

namespace cairn::kv::internal {

/// Commits the step of an attempt. See StepWriter::Commit.
Result<StepInfo> CommitStep(StepAttempt& attempt, const StepSummary& summary);

/// Commits a step with the records of `base`. See StepWriter::CommitSame.
Result<StepInfo> CommitSameStep(StepAttempt& attempt, const StepInfo& base);

/// If the storage answers slowly, opens the tables of the latest step while the caller waits for
/// something else. The commit usually compares its records with this step, and returns the errors
/// that this function ignores. Threads: any.
void OpenLikelyBase(StoreState& state);

}  // namespace cairn::kv::internal
