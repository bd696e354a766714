#pragma once
/// HTTP requests over libcurl: many in flight on one thread, or one on the calling thread.
///
/// Connections are kept open and used again. The proxy variables of the environment (HTTPS_PROXY,
/// NO_PROXY, ...) apply, as libcurl defines them. Redirects are not followed, and statuses such as
/// 503 are answers like others: kv/storage/s3/internal/s3_client.h decides what to do about them.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "kv/storage/s3/internal/http_transfer.h"

namespace cairn::kv::internal {

/// Runs on the thread of the client, and must neither wait nor throw.
using HttpDone = std::move_only_function<void(HttpResponse)>;

/// The destructor cancels all requests and waits until their callbacks have returned.
/// Threads: all members may run on many threads at once.
class HttpClient {
 public:
  HttpClient(HttpOptions options, uint32_t max_connections);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// Begins a request; `done` is called exactly once, unless this throws. `id` is for Cancel, and
  /// may be 0. Requests beyond `max_connections` wait for others to complete.
  void Start(HttpRequest request, uint64_t id, HttpDone done);
  /// Completes the requests with this id soon, with kCancelled.
  void Cancel(uint64_t id);
  /// Returns the number of requests that have not completed.
  uint64_t pending_count() const { return pending_count_.load(std::memory_order_relaxed); }

 private:
  class Worker;
  std::atomic<uint64_t> pending_count_ = 0;
  std::unique_ptr<Worker> worker_;
};

/// Performs one request on the calling thread without a proxy, for services that supply
/// credentials: a proxy would see the secrets.
HttpResponse PerformHttpRequest(const HttpRequest& request, const HttpOptions& options);

/// Returns how long to wait before a request that has failed `attempt` + 1 times is sent again:
/// half of 50 ms * 2^attempt to all of it, at most 5 s. Random, so that many processes do not ask
/// again together.
std::chrono::milliseconds PauseBefore(int attempt);

}  // namespace cairn::kv::internal
