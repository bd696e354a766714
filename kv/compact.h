#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Rewrites segments of which steps use only a part (docs/adr/0015-compaction.md).

#include "kv/base/error.h"
#include "kv/maintain/compact_options.h"
#include "kv/store.h"

namespace cairn::kv {

/// Moves the payload that steps use out of segments that are mostly unused, in the order in which
/// the newest step has it, and rewrites the records of all steps. The old segments are removed when
/// the grace period has passed. No step changes: each has the same keys, values, bytes and digests.
///
/// Saves, deletes and readers continue: a save of this process that began before may still refer to
/// an old segment, which then remains. If its grace period has passed before the save commits, the
/// save fails with kConflict, and can be repeated. Memory: about 300 bytes per chunk in the
/// segments that are rewritten, 64 MiB per table that is compared, and the blocks of one writer and
/// one reader.
///
/// kFailedPrecondition: the store is closed or, unless `dry_run` is set, read-only, another
/// compaction of it is running, or it is unknown whether an earlier change was committed.
/// kConflict: another writer has taken over the store. kNotFound: in a store without a grace
/// period, other threads have deleted what was read, again and again. kCancelled: `progress` asked
/// to stop. kInvalidArgument: `max_dead` is not between 0 and 1. kDataLoss: a page to be moved does
/// not match its digest; nothing refers to its copy. kUnavailable, kResourceExhausted: I/O. After
/// an error, what was committed remains.
Result<CompactReport> Compact(Store& store, const CompactOptions& options = {});

}  // namespace cairn::kv
