// The thread that runs the requests.

#include "kv/storage/s3/internal/http_client.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <utility>

#include "kv/base/catch_exhaustion.h"

namespace cairn::kv::internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxPollMs = 60'000;
constexpr std::chrono::milliseconds kFirstPause{50};
constexpr std::chrono::milliseconds kLongestPause{5'000};

HttpResponse FailedResponse(CURLcode failure, std::string error) {
  HttpResponse response;
  response.failure = failure;
  response.error = std::move(error);
  return response;
}

}  // namespace

HttpClient::HttpClient(HttpOptions options, uint32_t max_connections)
    : options_(std::move(options)), max_connections_(max_connections) {
  CAIRN_CHECK(multi_ != nullptr);
  curl_.multi_setopt(multi_, CURLMOPT_PIPELINING, static_cast<long>(CURLPIPE_NOTHING));
  curl_.multi_setopt(multi_, CURLMOPT_MAXCONNECTS, static_cast<long>(max_connections_));
}

HttpClient::~HttpClient() {
  std::thread thread;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    thread = std::move(thread_);
  }
  curl_.multi_wakeup(multi_);
  if (thread.joinable()) thread.join();
  curl_.multi_cleanup(multi_);
}

void HttpClient::Start(HttpRequest request, const void* owner, HttpDone done) {
  Jobs job;
  job.push_back({std::move(request), owner, std::move(done), nullptr});
  pending_count_.fetch_add(1, std::memory_order_relaxed);
  const auto start = [&]() -> Result<void> {
    const MutexLock lock(mutex_);
    if (!thread_.joinable()) {
      CAIRN_TRY_ASSIGN(thread_, StartThread("requests to the server", [this] { Run(); }));
    }
    arrived_.splice(arrived_.end(), job);
    return {};
  };
  if (auto started = start(); !started) {
    return Report(job.front(),
                  FailedResponse(CURLE_OUT_OF_MEMORY, std::move(started).error().message));
  }
  curl_.multi_wakeup(multi_);
}

void HttpClient::Cancel(const void* owner) {
  {
    const MutexLock lock(mutex_);
    cancelled_.insert(owner);
  }
  curl_.multi_wakeup(multi_);
}

void HttpClient::Run() {
  while (true) {
    const bool stopping = TakeArrived();
    if (stopping && waiting_.empty() && active_.empty()) return;
    BeginDue();
    int running_count = 0;
    curl_.multi_perform(multi_, &running_count);
    if (!Complete()) Poll();
  }
}

bool HttpClient::TakeArrived() {
  std::set<const void*> cancelled;
  bool stopping = false;
  {
    const MutexLock lock(mutex_);
    waiting_.splice(waiting_.end(), arrived_);
    std::swap(cancelled, cancelled_);
    stopping = stopping_;
  }
  if (!cancelled.empty()) CancelOwners(cancelled);
  return stopping;
}

void HttpClient::CancelOwners(const std::set<const void*>& owners) {
  Jobs cancelled;  // their callbacks are called last, because they may start requests
  for (Jobs* const jobs : {&waiting_, &active_}) {
    for (auto job = jobs->begin(); job != jobs->end();) {
      const auto next = std::next(job);
      if (owners.contains(job->owner)) {
        if (job->transfer) curl_.multi_remove_handle(multi_, job->transfer->handle());
        cancelled.splice(cancelled.end(), *jobs, job);
      }
      job = next;
    }
  }
  for (Job& job : cancelled) Report(job, FailedResponse(CURLE_ABORTED_BY_CALLBACK, "cancelled"));
}

void HttpClient::BeginDue() {
  for (auto job = waiting_.begin(); job != waiting_.end() && active_.size() < max_connections_;) {
    const auto next = std::next(job);
    if (job->request.not_before <= Clock::now()) {
      Jobs due;
      due.splice(due.end(), waiting_, job);
      auto begun =
          CatchExhaustion("a request", [&]() -> Result<HttpResponse> { return Begin(*job); });
      if (!begun) begun = FailedResponse(CURLE_OUT_OF_MEMORY, std::move(begun).error().message);
      if (begun->failure == CURLE_OK) {
        active_.splice(active_.end(), due);
      } else {
        Report(*job, *std::move(begun));
      }
    }
    job = next;
  }
}

HttpResponse HttpClient::Begin(Job& job) {
  if (job.request.deadline <= Clock::now()) {
    return FailedResponse(CURLE_OPERATION_TIMEDOUT, "the deadline has passed");
  }
  job.transfer = std::make_unique<HttpTransfer>(std::move(job.request), options_);
  if (job.transfer->setup() != CURLE_OK) return job.transfer->TakeResponse(job.transfer->setup());
  const CURLMcode code = curl_.multi_add_handle(multi_, job.transfer->handle());
  if (code == CURLM_OK) return {};
  return FailedResponse(CURLE_OUT_OF_MEMORY,
                        fmt::format("libcurl begins no request ({})", static_cast<int>(code)));
}

bool HttpClient::Complete() {
  bool any = false;
  int left_count = 0;
  while (const CURLMsg* message = curl_.multi_info_read(multi_, &left_count)) {
    if (message->msg != CURLMSG_DONE) continue;
    any = true;
    const CURLcode code = message->data.result;
    const auto job = std::ranges::find(active_, message->easy_handle,
                                       [](const Job& active) { return active.transfer->handle(); });
    CAIRN_CHECK(job != active_.end());
    curl_.multi_remove_handle(multi_, job->transfer->handle());
    Jobs completed;
    completed.splice(completed.end(), active_, job);
    Report(*job, job->transfer->TakeResponse(code));
  }
  return any;
}

void HttpClient::Poll() {
  {
    const MutexLock lock(mutex_);
    if (!arrived_.empty()) return;
  }
  auto left = std::chrono::milliseconds(kMaxPollMs);
  if (active_.size() < max_connections_) {
    for (const Job& job : waiting_) {
      left = std::min(left, std::chrono::ceil<std::chrono::milliseconds>(job.request.not_before -
                                                                         Clock::now()));
    }
  }
  curl_.multi_poll(multi_, nullptr, 0, static_cast<int>(std::max<int64_t>(0, left.count())),
                   nullptr);
}

void HttpClient::Report(Job& job, HttpResponse response) {
  pending_count_.fetch_sub(1, std::memory_order_relaxed);
  job.done(std::move(response));
}

std::chrono::milliseconds PauseBefore(int attempt) {
  static thread_local std::minstd_rand random(std::random_device{}());
  const auto whole = std::min(kLongestPause, kFirstPause * (1 << std::min(attempt, 10)));
  return std::chrono::milliseconds(
      std::uniform_int_distribution<int64_t>(whole.count() / 2, whole.count())(random));
}

}  // namespace cairn::kv::internal
