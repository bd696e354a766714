// The thread that runs the requests.
//
// A request is in one of three places: `arrived_` (shared with the callers), `waiting_` (not begun,
// ordered by the time when it may begin), or `active_` (libcurl has it). All but `arrived_` belong
// to the thread.

#include "kv/internal/s3/http_client.h"

#include <curl/curl.h>
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <map>
#include <set>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv/error.h"
#include "kv/internal/s3/curl_library.h"
#include "kv/internal/s3/http_transfer.h"
#include "kv/mutex.h"
#include "kv/thread_annotations.h"

namespace cairn::kv::internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxFreeHandles = 32;
constexpr int kMaxPollMs = 60'000;

HttpResponse FailedResponse(HttpFailure failure, std::string error) {
  HttpResponse response;
  response.failure = failure;
  response.error = std::move(error);
  return response;
}

}  // namespace

class HttpClient::Worker {
 public:
  Worker(HttpOptions options, uint32_t max_connections, std::atomic<uint64_t>& pending_count)
      : options_(std::move(options)),
        max_connections_(max_connections),
        pending_count_(pending_count) {
    multi_ = curl_.multi_init();
    CAIRN_CHECK(multi_ != nullptr);
    curl_.multi_setopt(multi_, CURLMOPT_PIPELINING, static_cast<long>(CURLPIPE_NOTHING));
    curl_.multi_setopt(multi_, CURLMOPT_MAXCONNECTS, static_cast<long>(max_connections_));
  }

  ~Worker() {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
    }
    curl_.multi_wakeup(multi_);
    if (thread_.joinable()) thread_.join();
    free_handles_.clear();
    curl_.multi_cleanup(multi_);
  }

  void Start(HttpRequest request, uint64_t id, HttpDone done) {
    bool is_own_thread = false;
    bool has_thread = false;
    {
      const MutexLock lock(mutex_);
      has_thread = EnsureThread();
      is_own_thread = std::this_thread::get_id() == thread_id_;
      if (has_thread) arrived_.push_back({std::move(request), id, std::move(done)});
    }
    if (!has_thread) {
      return Report(done, FailedResponse(HttpFailure::kNoMemory, "the system has no more threads"));
    }
    // A callback that starts another request runs on the thread, which looks before it waits.
    if (!is_own_thread) curl_.multi_wakeup(multi_);
  }

  void Cancel(uint64_t id) {
    {
      const MutexLock lock(mutex_);
      cancelled_.insert(id);
    }
    curl_.multi_wakeup(multi_);
  }

 private:
  struct Job {
    HttpRequest request;
    uint64_t id = 0;
    HttpDone done;
  };
  struct Active {
    std::unique_ptr<HttpTransfer> transfer;
    uint64_t id = 0;
    HttpDone done;
  };

  // Returns false if the system has no more threads.
  bool EnsureThread() CAIRN_REQUIRES(mutex_) {
    if (thread_.joinable()) return true;
    // The thread inherits the mask, so that it does not receive the signals of the program.
    sigset_t all;
    sigset_t old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    try {
      thread_ = std::thread([this] { Run(); });
      thread_id_ = thread_.get_id();
    } catch (const std::system_error&) {
    }
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    return thread_.joinable();
  }

  void Run() {
    for (;;) {
      const bool stopping = TakeArrived();
      if (stopping && waiting_.empty() && active_.empty()) return;
      if (stopping) CancelAll();
      BeginDue();
      int running_count = 0;
      curl_.multi_perform(multi_, &running_count);
      const bool completed_any = Complete();
      if (!completed_any && !stopping) Poll();
    }
  }

  // Takes what callers have added. Returns whether the client ends.
  bool TakeArrived() {
    std::vector<Job> arrived;
    std::set<uint64_t> cancelled;
    bool stopping = false;
    {
      const MutexLock lock(mutex_);
      std::swap(arrived, arrived_);
      std::swap(cancelled, cancelled_);
      stopping = stopping_;
    }
    for (Job& job : arrived) {
      const Clock::time_point begin = job.request.not_before;
      waiting_.emplace(begin, std::move(job));
    }
    if (!cancelled.empty()) {
      CancelIf([&](uint64_t id) { return cancelled.contains(id); });
    }
    return stopping;
  }

  void CancelAll() {
    CancelIf([](uint64_t) { return true; });
  }

  template <typename Predicate>
  void CancelIf(const Predicate& matches) {
    std::vector<HttpDone> callbacks;  // called last, because they may start requests
    for (auto job = waiting_.begin(); job != waiting_.end();) {
      if (matches(job->second.id)) {
        callbacks.push_back(std::move(job->second.done));
        job = waiting_.erase(job);
      } else {
        ++job;
      }
    }
    for (auto entry = active_.begin(); entry != active_.end();) {
      if (matches(entry->second.id)) {
        curl_.multi_remove_handle(multi_, entry->first);
        callbacks.push_back(std::move(entry->second.done));
        entry = active_.erase(entry);
      } else {
        ++entry;
      }
    }
    for (HttpDone& done : callbacks) {
      Report(done, FailedResponse(HttpFailure::kCancelled, "cancelled"));
    }
  }

  void BeginDue() {
    while (!waiting_.empty() && active_.size() < max_connections_ &&
           waiting_.begin()->first <= Clock::now()) {
      Job job = std::move(waiting_.extract(waiting_.begin()).mapped());
      if (job.request.deadline <= Clock::now()) {
        Report(job.done, FailedResponse(HttpFailure::kTimeout, "the deadline has passed"));
        continue;
      }
      CurlHandle handle;
      if (free_handles_.empty()) {
        handle.reset(curl_.easy_init());
      } else {
        handle = std::move(free_handles_.back());
        free_handles_.pop_back();
      }
      if (handle == nullptr) {
        Report(job.done, FailedResponse(HttpFailure::kNoMemory, "libcurl has no memory"));
        continue;
      }
      CURL* const key = handle.get();
      auto transfer =
          std::make_unique<HttpTransfer>(std::move(handle), std::move(job.request), options_);
      if (transfer->setup() != CURLE_OK) {
        Report(job.done, transfer->TakeResponse(transfer->setup()));
        continue;
      }
      if (const CURLMcode code = curl_.multi_add_handle(multi_, key); code != CURLM_OK) {
        Report(job.done,
               FailedResponse(HttpFailure::kNoMemory, fmt::format("libcurl begins no request ({})",
                                                                  static_cast<int>(code))));
        continue;
      }
      active_.emplace(key, Active{std::move(transfer), job.id, std::move(job.done)});
    }
  }

  // Reports the transfers that have completed. Returns whether there were any.
  bool Complete() {
    bool any = false;
    int left_count = 0;
    while (const CURLMsg* message = curl_.multi_info_read(multi_, &left_count)) {
      if (message->msg != CURLMSG_DONE) continue;
      any = true;
      const CURLcode code = message->data.result;
      auto entry = active_.extract(message->easy_handle);
      CAIRN_CHECK(!entry.empty());
      curl_.multi_remove_handle(multi_, entry.key());
      Active& active = entry.mapped();
      HttpResponse response = active.transfer->TakeResponse(code);
      CurlHandle handle = active.transfer->TakeHandle();
      if (free_handles_.size() < kMaxFreeHandles) free_handles_.push_back(std::move(handle));
      Report(active.done, std::move(response));
    }
    return any;
  }

  void Poll() {
    int timeout_ms = kMaxPollMs;
    {
      const MutexLock lock(mutex_);
      if (!arrived_.empty()) return;
    }
    if (!waiting_.empty() && active_.size() < max_connections_) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(waiting_.begin()->first - Clock::now());
      timeout_ms = static_cast<int>(std::clamp<int64_t>(left.count(), 0, kMaxPollMs));
    }
    curl_.multi_poll(multi_, nullptr, 0, timeout_ms, nullptr);
  }

  void Report(HttpDone& done, HttpResponse response) {
    pending_count_.fetch_sub(1, std::memory_order_relaxed);
    done(std::move(response));
  }

  const HttpOptions options_;
  const uint32_t max_connections_;
  std::atomic<uint64_t>& pending_count_;
  const CurlLibrary& curl_ = Curl();
  CURLM* multi_ = nullptr;
  std::multimap<Clock::time_point, Job> waiting_;
  std::unordered_map<CURL*, Active> active_;
  std::vector<CurlHandle> free_handles_;  // to avoid allocating their buffers again

  Mutex mutex_;
  std::vector<Job> arrived_ CAIRN_GUARDED_BY(mutex_);
  std::set<uint64_t> cancelled_ CAIRN_GUARDED_BY(mutex_);
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
  std::thread::id thread_id_ CAIRN_GUARDED_BY(mutex_);

  std::thread thread_;  // begins with the first request
};

HttpClient::HttpClient(HttpOptions options, uint32_t max_connections)
    : worker_(std::make_unique<Worker>(std::move(options), max_connections, pending_count_)) {}

HttpClient::~HttpClient() = default;

void HttpClient::Start(HttpRequest request, uint64_t id, HttpDone done) {
  pending_count_.fetch_add(1, std::memory_order_relaxed);
  worker_->Start(std::move(request), id, std::move(done));
}

void HttpClient::Cancel(uint64_t id) { worker_->Cancel(id); }

}  // namespace cairn::kv::internal
