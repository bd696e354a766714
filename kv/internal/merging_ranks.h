#pragma once
/// Rank 0's side of a step whose records several ranks merge (docs/adr/0019):
///
///   1. Rank 0 puts an indexed part, as all other ranks do, and reads parts without their chunks.
///   2. It divides the keys of the chunks into ranges (section_index.h) and puts a task per range.
///      If there are few chunks, it reads them itself instead.
///   3. Each merging rank reads the chunks of its range, checks them, writes a table with them and
///      puts a result (range_merge.h).
///   4. Rank 0 waits for the results, adds them up, and commits a divided table: all other records,
///      and the tables of the ranges.
///
/// Nothing refers to the tables of ranges before the root is put. If the attempt fails, rank 0
/// removes those whose results it has read; the next open for writing removes the others.

#include "kv/error.h"
#include "kv/internal/step_attempt.h"
#include "kv/step_records.h"

namespace cairn::kv::internal {

/// Performs 1 to 3, and the first half of 4. See StepWriter::Gather. kUnavailable: ranks have not
/// written their parts, or merging ranks have not merged their ranges, at the deadline; names them.
Result<void> GatherRanges(StepAttempt& attempt, RankRecords& others);

}  // namespace cairn::kv::internal
