#pragma once
/// The CAIRN file, and the creation of a store.

#include <chrono>

#include "kv/error.h"
#include "kv/internal/commit/commit_files.h"
#include "kv/internal/segment/segment_format.h"

namespace cairn::kv::internal {

inline constexpr int kStoreFormat = 1;

/// Reads and checks CAIRN. kNotFound: there is no such directory. kInvalidArgument: the path is not
/// a store. kUnimplemented: the format is newer. kDataLoss: CAIRN is damaged, or missing from a
/// directory that contains committed data.
Result<Uuid> ReadIdentity(const StorePaths& paths);

/// Creates the directory if it is absent. kInvalidArgument: it contains other files and is not a
/// store. kDataLoss: CAIRN is missing from a directory that contains committed data.
Result<void> PrepareDirectory(const StorePaths& paths);

/// Creates an empty index. Requires the writer's lock.
Result<void> CreateIndex(const StorePaths& paths, std::chrono::milliseconds deadline);

/// Creates a store in a prepared directory. CAIRN is written last and durably: without it there is
/// no store, and the next open creates everything again. Requires the writer's lock.
Result<void> CreateStore(const StorePaths& paths, std::chrono::milliseconds deadline);

}  // namespace cairn::kv::internal
