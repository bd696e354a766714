#pragma once
/// HTTP requests over libcurl, many in flight on one thread.
///
/// Connections are kept open and used again. The proxy variables of the environment (HTTPS_PROXY,
/// NO_PROXY, ...) apply, as libcurl defines them. Redirects are not followed, and statuses such as
/// 503 are answers like others: kv/storage/s3/internal/s3_client.h decides what to do about them.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <set>
#include <thread>

#include "kv/base/error.h"
#include "kv/base/mutex.h"
#include "kv/storage/s3/internal/curl_library.h"
#include "kv/storage/s3/internal/http_transfer.h"

namespace cairn::kv::internal {

/// Runs on the thread of the client, and must not throw. While it waits, no request proceeds.
using HttpDone = std::move_only_function<void(HttpResponse)>;

/// Requires that no request is in flight when it is destroyed.
/// Threads: Start and Cancel may run on many threads at once.
class HttpClient {
 public:
  HttpClient(HttpOptions options, uint32_t max_connections);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// Begins a request; `done` is called exactly once, unless this throws. `owner` is for Cancel,
  /// and may be null. Requests beyond `max_connections` wait for others to complete.
  void Start(HttpRequest request, const void* owner, HttpDone done);
  /// Completes the requests of this owner soon, with CURLE_ABORTED_BY_CALLBACK.
  void Cancel(const void* owner);
  /// Returns the number of requests that have not completed.
  uint64_t pending_count() const { return pending_count_.load(std::memory_order_relaxed); }

 private:
  struct Job {
    HttpRequest request;
    const void* owner = nullptr;
    HttpDone done;
    std::unique_ptr<HttpTransfer> transfer;  // if it has begun
  };
  /// A job moves between lists as a node, which needs no memory: whatever happens, its callback is
  /// called.
  using Jobs = std::list<Job>;

  /// What the thread does.
  void Run();
  /// Takes what callers have added. Returns whether the client ends.
  bool TakeArrived();
  void CancelOwners(const std::set<const void*>& owners);
  void BeginDue();
  /// Begins a request. Returns a failure if that is not possible.
  HttpResponse Begin(Job& job);
  /// Reports the transfers that have completed. Returns whether there were any.
  bool Complete();
  void Poll();
  void Report(Job& job, HttpResponse response);

  const HttpOptions options_;
  const uint32_t max_connections_;
  const CurlLibrary& curl_ = Curl();
  CURLM* const multi_ = curl_.multi_init();
  std::atomic<uint64_t> pending_count_ = 0;
  // Only the thread uses these.
  Jobs waiting_;  // for the time when they may begin, or for a connection
  Jobs active_;   // libcurl has them

  Mutex mutex_;
  Jobs arrived_ CAIRN_GUARDED_BY(mutex_);
  std::set<const void*> cancelled_ CAIRN_GUARDED_BY(mutex_);
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
  std::thread thread_ CAIRN_GUARDED_BY(mutex_);  // begins with the first request
};

/// Returns how long to wait before a request that has failed `attempt` + 1 times is sent again:
/// half of 50 ms * 2^attempt to all of it, at most 5 s. Random, so that many processes do not ask
/// again together.
std::chrono::milliseconds PauseBefore(int attempt);

}  // namespace cairn::kv::internal
