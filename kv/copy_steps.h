#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Copies steps from one store to another, whatever their storages are.
///
/// Only segments that the target lacks are transferred; what a step shares with a step that the
/// target has is found there. A copy has the records and the attempt of its source, and its number
/// unless CopyOptions::into is another one. It is committed like a saved step: it exists completely
/// or not at all. A copy that was interrupted continues with the segments that it had finished.

#include "kv/base/copy_options.h"
#include "kv/base/error.h"
#include "kv/store.h"

namespace cairn::kv {

/// Copies the steps, ascending, each with one commit.
///
/// Every page is compared with its digest before it is written, and the headers, footers and
/// trailers of segments are verified; nothing that does not match is committed.
///
/// kNotFound: the source has no such step; then nothing is copied. kConflict: the target has a step
/// with the number of a copy and other contents and `overwrite` is false, another writer has taken
/// over the target, or another thread has changed it during the copy. kDataLoss: the source is
/// damaged; the error names the object. kCancelled: `progress` returned false. kInvalidArgument:
/// `into` is set, and there is not exactly one step. kFailedPrecondition: the target is not open
/// for writing, or a save of it is running. Returns the errors of the two storages, too. After an
/// error, the steps before it are in the target. With `skip_lost`, a step of which these are
/// kNotFound or kDataLoss ends nothing, and is kDeleted or among CopyReport::damaged.
///
/// Memory: the block pools of both stores, and, per thread, the page digests and the footer of a
/// segment. While it runs, the target cannot begin a step. Threads: one call per target at a time.
Result<CopyReport> CopySteps(Store& source, Store& target, const CopyOptions& options);

}  // namespace cairn::kv
