#pragma once
/// One step that several ranks write: a two-phase commit through files.
///
/// 1. Each rank other than 0 writes its segments and a manifest: <rank>.manifest.part is written,
///    synced and renamed to <rank>.manifest.
/// 2. Rank 0 waits for the manifests in the order of the ranks and copies each of them, block by
///    block, into its own. A rank that cannot continue writes a file that ends the wait.
/// 3. Rank 0 commits, and writes the outcome to a file. 4. The other ranks read the outcome. If it
/// does not exist before their deadline, or the directory
///    was removed, they search the index for the attempt.
///
/// A manifest is accepted only under the name and with the header of this attempt, so that a
/// manifest of another attempt cannot replace it. A rank that is late writes to a directory that
/// nobody reads, and the ids of its segments differ from those of any other attempt.

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
