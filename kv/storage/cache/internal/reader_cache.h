#pragma once
/// The reader cache of stores whose objects are not files, as the environment defines it.
///
///   CAIRN_CACHE         a directory, which is created if it is absent, and in which the cache has
///                       a folder; unset or empty: no cache
///   CAIRN_CACHE_BYTES   1048576 ... 2^63-1, the space that it may take; 34359738368 by default
///
/// No other file reads these variables.

#include <memory>

#include "kv/base/error.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// Returns a storage that reads `base` through the cache; `base` itself if there is no cache, or
/// its objects are files. kInvalidArgument: CAIRN_CACHE_BYTES has another value than those above.
/// kFailedPrecondition: the folder is not the cache's, or others may change it.
Result<std::shared_ptr<Storage>> WithReaderCache(std::shared_ptr<Storage> base);

}  // namespace cairn::kv::internal
