#pragma once
/// A queue of requests that reads immutable objects from the reader cache, and adds to it what the
/// queue of the storage has read.

#include <memory>

#include "kv/io/io_queue.h"
#include "kv/storage/cache/internal/cache_directory.h"

namespace cairn::kv::internal {

/// A read of bytes in the cache completes when it is submitted; all other requests go to `base`.
/// Ownership: `cache` outlives it.
std::unique_ptr<IoQueue> MakeCachedQueue(CacheDirectory& cache, std::unique_ptr<IoQueue> base);

}  // namespace cairn::kv::internal
