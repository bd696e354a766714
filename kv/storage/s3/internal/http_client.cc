// The thread that runs the requests.
//
// A request is in one of three places: `arrived_` (shared with the callers), `waiting_` (not begun,
// ordered by the time when it may begin), or `active_` (libcurl has it). All but `arrived_` belong
// to the thread. A request moves from one to the other as a node of a map, which needs no memory:
// whatever happens, its callback is called.

#include "kv/storage/s3/internal/http_client.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "kv/base/catch_exhaustion.h"
#include "kv/base/error.h"
#include "kv/base/mutex.h"
#include "kv/storage/s3/internal/curl_library.h"

namespace cairn::kv::internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxFreeHandles = 32;
constexpr int kMaxPollMs = 60'000;
constexpr std::chrono::milliseconds kFirstPause{50};
constexpr std::chrono::milliseconds kLongestPause{5'000};

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
    free_handles_.reserve(kMaxFreeHandles);
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
    Jobs job;
    const Clock::time_point begin = request.not_before;
    job.emplace(begin, Job{std::move(request), id, std::move(done)});
    pending_count_.fetch_add(1, std::memory_order_relaxed);
    bool is_own_thread = false;
    Result<void> started;
    {
      const MutexLock lock(mutex_);
      started = EnsureThread();
      is_own_thread = std::this_thread::get_id() == thread_id_;
      if (started) arrived_.merge(job);
    }
    if (!started) {
      return Report(job.begin()->second.done,
                    FailedResponse(HttpFailure::kNoMemory, std::move(started).error().message));
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
  using Jobs = std::multimap<Clock::time_point, Job>;  // by the time when they may begin
  struct Active {
    std::unique_ptr<HttpTransfer> transfer;
    uint64_t id = 0;
    HttpDone done;
  };

  Result<void> EnsureThread() CAIRN_REQUIRES(mutex_) {
    if (thread_.joinable()) return {};
    CAIRN_TRY_ASSIGN(thread_, StartThread("requests to the server", [this] { Run(); }));
    thread_id_ = thread_.get_id();
    return {};
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
    std::set<uint64_t> cancelled;
    bool stopping = false;
    {
      const MutexLock lock(mutex_);
      waiting_.merge(arrived_);
      std::swap(cancelled, cancelled_);
      stopping = stopping_;
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
    Jobs jobs;  // their callbacks are called last, because they may start requests
    std::map<CURL*, Active> transfers;
    for (auto job = waiting_.begin(); job != waiting_.end();) {
      const auto next = std::next(job);
      if (matches(job->second.id)) jobs.insert(waiting_.extract(job));
      job = next;
    }
    for (auto entry = active_.begin(); entry != active_.end();) {
      const auto next = std::next(entry);
      if (matches(entry->second.id)) {
        curl_.multi_remove_handle(multi_, entry->first);
        transfers.insert(active_.extract(entry));
      }
      entry = next;
    }
    for (auto& [begin, job] : jobs) {
      Report(job.done, FailedResponse(HttpFailure::kCancelled, "cancelled"));
    }
    for (auto& [handle, active] : transfers) {
      Report(active.done, FailedResponse(HttpFailure::kCancelled, "cancelled"));
    }
  }

  void BeginDue() {
    while (!waiting_.empty() && active_.size() < max_connections_ &&
           waiting_.begin()->first <= Clock::now()) {
      Job job = std::move(waiting_.extract(waiting_.begin()).mapped());
      // Begun, or a response that states why it was not.
      auto begun = CatchExhaustion(
          "a request", [&]() -> Result<std::optional<HttpResponse>> { return Begin(job); });
      if (!begun) {
        Report(job.done, FailedResponse(HttpFailure::kNoMemory, std::move(begun).error().message));
      } else if (*begun) {
        Report(job.done, **std::move(begun));
      }
    }
  }

  // Returns why the request was not begun, or nothing: then `active_` has its callback.
  std::optional<HttpResponse> Begin(Job& job) {
    if (job.request.deadline <= Clock::now()) {
      return FailedResponse(HttpFailure::kTimeout, "the deadline has passed");
    }
    CurlHandle handle;
    if (free_handles_.empty()) {
      handle.reset(curl_.easy_init());
    } else {
      handle = std::move(free_handles_.back());
      free_handles_.pop_back();
    }
    if (handle == nullptr) return FailedResponse(HttpFailure::kNoMemory, "libcurl has no memory");
    CURL* const key = handle.get();
    auto transfer =
        std::make_unique<HttpTransfer>(std::move(handle), std::move(job.request), options_);
    if (transfer->setup() != CURLE_OK) return transfer->TakeResponse(transfer->setup());
    std::map<CURL*, Active> node;
    Active& active = node[key];
    if (const CURLMcode code = curl_.multi_add_handle(multi_, key); code != CURLM_OK) {
      return FailedResponse(HttpFailure::kNoMemory,
                            fmt::format("libcurl begins no request ({})", static_cast<int>(code)));
    }
    active = {std::move(transfer), job.id, std::move(job.done)};
    active_.merge(node);
    return std::nullopt;
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
  Jobs waiting_;
  std::map<CURL*, Active> active_;
  std::vector<CurlHandle> free_handles_;  // to avoid allocating their buffers again

  Mutex mutex_;
  Jobs arrived_ CAIRN_GUARDED_BY(mutex_);
  std::set<uint64_t> cancelled_ CAIRN_GUARDED_BY(mutex_);
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
  std::thread::id thread_id_ CAIRN_GUARDED_BY(mutex_);

  std::thread thread_;  // begins with the first request
};

HttpClient::HttpClient(HttpOptions options, uint32_t max_connections)
    : worker_(std::make_unique<Worker>(std::move(options), max_connections, pending_count_)) {}

HttpClient::~HttpClient() = default;

void HttpClient::Start(HttpRequest request, uint64_t id, HttpDone done) {
  worker_->Start(std::move(request), id, std::move(done));
}

void HttpClient::Cancel(uint64_t id) { worker_->Cancel(id); }

HttpResponse PerformHttpRequest(const HttpRequest& request, const HttpOptions& options) {
  const CurlLibrary& curl = Curl();
  HttpTransfer transfer(CurlHandle(curl.easy_init()), request, options);
  if (transfer.setup() != CURLE_OK) return transfer.TakeResponse(transfer.setup());
  curl.easy_setopt(transfer.handle(), CURLOPT_NOPROXY, "*");
  return transfer.TakeResponse(curl.easy_perform(transfer.handle()));
}

std::chrono::milliseconds PauseBefore(int attempt) {
  static thread_local std::minstd_rand random(std::random_device{}());
  const auto whole = std::min(kLongestPause, kFirstPause * (1 << std::min(attempt, 10)));
  return std::chrono::milliseconds(
      std::uniform_int_distribution<int64_t>(whole.count() / 2, whole.count())(random));
}

}  // namespace cairn::kv::internal
