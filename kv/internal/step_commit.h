#pragma once
/// The commit of a step: its table, and the next root.

#include "kv/error.h"
#include "kv/internal/step_attempt.h"
#include "kv/step_info.h"
#include "kv/step_records.h"

namespace cairn::kv::internal {

/// Commits the step of an attempt whose segments are sealed. See StepWriter::Commit.
Result<StepInfo> CommitStep(StepAttempt& attempt, const StepSummary& summary);

/// Commits a step with the records of `base`. See StepWriter::CommitSame.
Result<StepInfo> CommitSameStep(StepAttempt& attempt, const StepInfo& base);

/// Where each request takes long, opens the tables of the latest step while the caller waits for
/// something else. The commit usually compares its records with this step, and returns the errors
/// that this ignores. Threads: any.
void OpenLikelyBase(StoreState& state);

}  // namespace cairn::kv::internal
