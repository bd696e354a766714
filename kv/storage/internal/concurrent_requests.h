#pragma once
/// Independent requests to a storage, at once if each takes long.

#include <cstddef>
#include <functional>
#include <initializer_list>

#include "kv/base/error.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// Calls `request(i)` for i from 0 to `count` - 1: one after another, or on as many threads as
/// TransferSizes::small_requests of the storage states. Returns the error of the lowest i. After an
/// error, further requests may not be made.
Result<void> ForEachRequest(const Storage& storage, size_t count,
                            const std::function<Result<void>(size_t)>& request);
/// Makes each of the requests in the same way.
Result<void> RunRequests(const Storage& storage,
                         std::initializer_list<std::function<Result<void>()>> requests);

}  // namespace cairn::kv::internal
