#pragma once
/// Checks chunks that have deltas: decodes them, and compares the result with their records.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/base/internal/progress_meter.h"
#include "core/inspect/internal/payload_index.h"
#include "kv/read/snapshot.h"

namespace cairn::core::internal {

/// Reads and decodes every item, all of which have the part kDeltas. Reads the extents and leading
/// deltas that adjacent items share once. Calls `damage` for each item whose bytes do not match its
/// record. Returns the bytes read. Memory: one chunk and its deltas. Errors: kCancelled only.
Result<uint64_t> ScrubDeltas(const std::shared_ptr<const kv::Snapshot>& snapshot,
                             const std::string& directory, std::span<const ScrubItem> items,
                             const std::function<void(const kv::Damage&)>& damage,
                             ProgressMeter& progress);

}  // namespace cairn::core::internal
