#pragma once
/// The commit of a step: its table, and the next root.

#include "kv/error.h"
#include "kv/internal/step_attempt.h"
#include "kv/step_info.h"
#include "kv/step_records.h"

namespace cairn::kv::internal {

/// Commits the step of an attempt whose segments are sealed. See StepWriter::Commit.
Result<StepInfo> CommitStep(StepAttempt& attempt, const StepSummary& summary);

/// Where each request takes long, opens the tables of the latest step, with which the commit usually
/// compares its records, while the caller waits for something else. Errors are ignored, because the
/// commit returns them. Threads: any.
void OpenLikelyBase(StoreState& state);

}  // namespace cairn::kv::internal
