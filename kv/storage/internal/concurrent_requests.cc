#include "kv/storage/internal/concurrent_requests.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "kv/io/worker_pool.h"

namespace cairn::kv::internal {

Result<void> ForEachRequest(const Storage& storage, size_t count,
                            const std::function<Result<void>(size_t)>& request) {
  const size_t thread_count = std::min<size_t>(count, storage.transfer_sizes().small_requests);
  if (thread_count <= 1) {
    for (size_t i = 0; i < count; ++i) CAIRN_TRY(request(i));
    return {};
  }
  std::vector<Result<void>> results(count);
  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  const auto work = [&](size_t) -> Result<void> {
    for (size_t i = next++; i < count && !failed; i = next++) {
      results[i] = request(i);
      if (!results[i]) failed = true;
    }
    return {};
  };
  CAIRN_TRY(RunOnThreads(thread_count, "requests to the storage", work));
  for (Result<void>& result : results) CAIRN_TRY(std::move(result));
  return {};
}

Result<void> RunRequests(const Storage& storage,
                         std::initializer_list<std::function<Result<void>()>> requests) {
  return ForEachRequest(storage, requests.size(), [&](size_t i) { return requests.begin()[i](); });
}

}  // namespace cairn::kv::internal
