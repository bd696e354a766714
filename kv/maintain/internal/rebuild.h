#pragma once
/// Recovery of a store whose newest root cannot be read (docs/format/recovery.md).

#include "kv/base/error.h"
#include "kv/base/options.h"
#include "kv/state/internal/store_state.h"

namespace cairn::kv::internal {

/// See Store::Rebuild.
Result<RebuildReport> Rebuild(StoreState& state);

}  // namespace cairn::kv::internal
