#pragma once
/// Writing one step by several ranks: parts, what rank 0 makes of them, and how all learn the
/// outcome.
///
/// 1. Each rank writes segments and a manifest of its own: to <rank>.manifest.part, synced, renamed.
/// 2. Rank 0 waits for the manifests in the order of the ranks and copies each one, block by block,
///    into its own. A rank that cannot continue leaves a note, which ends the wait.
/// 3. Rank 0 commits, and leaves the outcome for the other ranks.
/// 4. They find it. If the outcome or its directory is not there in time, they look into the index.
///
/// A manifest is accepted only under the name and with the header of this attempt, so that no
/// manifest of another attempt can take its place. A rank that is late writes into a directory that
/// nobody reads, and the ids of its segments are not those of any other attempt.

#include <cstdint>
#include <span>

#include "kv/error.h"
#include "kv/internal/step_attempt.h"
#include "kv/step_records.h"

namespace cairn::kv::internal {

/// See StepWriter::AddShared.
Result<void> AddSharedRecords(StepAttempt& attempt, std::span<const SharedRecord> records);

/// See StepWriter::Gather.
Result<void> GatherParts(StepAttempt& attempt, const RankRecordCallback& on_record);

/// See StepWriter::Prepare.
Result<void> PreparePart(StepAttempt& attempt, const StepSummary& summary);

/// Waits until rank 0 has committed the step or aborted the attempt. Returns the generation of the
/// step. See StepWriter::AwaitDecision.
Result<uint64_t> AwaitGeneration(StepAttempt& attempt);

}  // namespace cairn::kv::internal
