#pragma once
/// Records that several ranks have in common, as objects of an attempt that are named by their
/// digest, so that they are stored once.

#include <span>
#include <string>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/step_records.h"
#include "kv/commit/internal/part_file.h"
#include "kv/commit/internal/step_attempt.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// See StepWriter::AddShared.
Result<void> AddSharedRecords(StepAttempt& attempt, std::span<const SharedRecord> records);

/// Returns the records to which parts of the attempt refer by `digest`, a key of 16 bytes.
/// kDataLoss: they are damaged, or have another digest.
Result<std::vector<SharedRecord>> ReadSharedRecords(const StepAttempt& attempt,
                                                    const std::string& digest);

}  // namespace cairn::kv::internal
