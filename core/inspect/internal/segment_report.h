#pragma once
/// How much of the segments is used, as far as it is known without reading the records of chunks.

#include <vector>

#include "core/inspect/report.h"
#include "kv/base/error.h"
#include "kv/read/snapshot.h"
#include "kv/storage/storage.h"

namespace cairn::core::internal {

/// Adds up the usage records of all steps: of each segment, at least the bytes that the step uses
/// which uses most are live, and at least those of the second one are shared. This is exact as long
/// as later steps use parts of what earlier steps use. If the usage cannot be read, all is live.
/// Compares with the files of the storage, and adds a problem for each that is missing or has
/// another length, and for each step whose segments cannot be read. Errors: those of
/// Snapshot::Steps and Storage::List.
Result<ReportSpace> MeasureSegmentUse(const kv::Snapshot& snapshot, kv::Storage& storage,
                                      std::vector<Error>& problems);

}  // namespace cairn::core::internal
