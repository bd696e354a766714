#pragma once
/// One step that several ranks write: a two-phase commit through objects.
///
///   1. Each rank other than 0 writes its segments and puts its part.
///   2. Rank 0 waits for the parts in the order of the ranks, and adds their records to its own. A
///      rank that cannot continue puts an object that ends the wait.
///   3. Rank 0 commits, and puts the outcome.
///   4. The other ranks read the outcome. If there is none before their deadline, or rank 0 has
///      closed the store, they search the newest root for the attempt.
///
/// A part is accepted only under the name and with the header of this attempt, so that a part of
/// another attempt cannot replace it. A rank that is late puts a part that nobody reads, and the
/// ids of its segments differ from all ids of any other attempt.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/step_info.h"
#include "kv/commit/internal/step_attempt.h"

namespace cairn::kv::internal {

// Records that several ranks have in common are objects of the attempt that are named by their
// digest, so that they are stored once.

/// See StepWriter::AddShared.
Result<void> AddSharedRecords(StepAttempt& attempt, std::span<const SharedRecord> records);

/// Returns the records to which parts of the attempt refer by `digest`. kDataLoss: they are
/// damaged, or have another digest.
Result<std::vector<SharedRecord>> ReadSharedRecords(const StepAttempt& attempt,
                                                    const std::string& digest);

/// Waits for the parts of the other ranks, and adds their records to the step (part_gatherer.cc).
/// See StepWriter::Gather.
Result<void> GatherParts(StepAttempt& attempt, RankRecords& others);

/// See StepWriter::Prepare.
Result<void> PreparePart(StepAttempt& attempt, const StepSummary& summary);

/// Waits until rank 0 has committed the step or aborted the attempt. Returns the generation of the
/// step. See StepWriter::AwaitDecision.
Result<uint64_t> AwaitGeneration(StepAttempt& attempt);

}  // namespace cairn::kv::internal
