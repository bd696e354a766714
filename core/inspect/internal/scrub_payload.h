#pragma once
/// Reads payload and page digests, and checks them against the records.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/base/progress.h"
#include "core/inspect/internal/payload_index.h"
#include "kv/base/step_info.h"
#include "kv/read/snapshot.h"

namespace cairn::core::internal {

/// Reads the payload and the stored page digests of every item and checks both against the records.
/// Calls `damage` for each mismatch and each extent that cannot be read. Returns the payload bytes
/// read. Requires that items with the part kDeltas are last. Cost: least if `items` are sorted by
/// location. Errors: kCancelled only.
Result<uint64_t> ScrubPayload(const std::shared_ptr<const kv::Snapshot>& snapshot,
                              const std::string& directory, std::span<const ScrubItem> items,
                              const std::function<void(const kv::Damage&)>& damage,
                              const Progress& progress);

}  // namespace cairn::core::internal
