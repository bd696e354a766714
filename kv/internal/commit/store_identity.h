#pragma once
/// The CAIRN file, and the making of a new store.

#include <chrono>

#include "kv/error.h"
#include "kv/internal/commit/commit_files.h"
#include "kv/internal/segment/segment_format.h"

namespace cairn::kv::internal {

inline constexpr int kStoreFormat = 1;

/// Reads and checks CAIRN. kNotFound: no such directory. kInvalidArgument: a directory, but no
/// store. kUnimplemented: newer format. kDataLoss: damaged, or missing from what is clearly a
/// store.
Result<Uuid> ReadIdentity(const StorePaths& paths);

/// Makes the directory if absent. kInvalidArgument: it holds other things and is no store.
Result<void> PrepareDirectory(const StorePaths& paths);

/// An empty index. Requires the lock.
Result<void> CreateIndex(const StorePaths& paths, std::chrono::milliseconds deadline);

/// Fills a prepared directory. CAIRN comes last and durably: without it there is no store, and what
/// a crash before it left is made anew. Requires the lock.
Result<void> CreateStore(const StorePaths& paths, std::chrono::milliseconds deadline);

}  // namespace cairn::kv::internal
