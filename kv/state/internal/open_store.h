#pragma once
/// The work of an open before the first commit or read of the store.

#include <cstdint>
#include <memory>

#include "kv/base/error.h"
#include "kv/state/internal/store_state.h"

namespace cairn::kv::internal {

/// Reads the identity and the newest root. For readers and for ranks that join a session. Returns
/// the errors of Store::Open.
Result<void> OpenForReading(StoreState& state);

/// Becomes the writer: creates the store if it is absent, takes the lease, commits a root with the
/// next epoch, and removes the objects of crashed attempts. Returns the errors of Store::Open.
Result<void> OpenForWriting(StoreState& state);

/// Returns the root with this number. kNotFound: it has been removed, or belongs to another store.
Result<std::shared_ptr<const CommittedRoot>> ReadRootOf(const StoreState& state, uint64_t number);

/// Sets state.root to the newest root. Returns whether it is a new one. Requires that the store is
/// open.
Result<bool> RefreshRoot(StoreState& state);

}  // namespace cairn::kv::internal
