#include "kv/storage/internal/concurrent_requests.h"

#include "kv/io/worker_pool.h"

namespace cairn::kv::internal {

Result<void> ForEachRequest(const Storage& storage, size_t count,
                            const std::function<Result<void>(size_t)>& request) {
  return RunOnThreads(count, "requests to the storage", request,
                      storage.transfer_sizes().small_requests);
}

Result<void> RunRequests(const Storage& storage,
                         std::initializer_list<std::function<Result<void>()>> requests) {
  return ForEachRequest(storage, requests.size(), [&](size_t i) { return requests.begin()[i](); });
}

}  // namespace cairn::kv::internal
