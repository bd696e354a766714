#pragma once
/// Recovery of a store whose newest root cannot be read (docs/format/recovery.md).

#include "kv/error.h"
#include "kv/internal/commit/store_state.h"
#include "kv/rebuild_report.h"

namespace cairn::kv::internal {

/// See Store::Rebuild.
Result<RebuildReport> Rebuild(StoreState& state);

}  // namespace cairn::kv::internal
