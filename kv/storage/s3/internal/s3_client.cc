// Attempts, what happens between them, and the threads that run them.

#include "kv/storage/s3/internal/s3_client.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <thread>
#include <utility>

#include "kv/base/catch_exhaustion.h"
#include "kv/base/mutex.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {

std::atomic<uint64_t>& RepeatedRequestCounter(const std::string& address) {
  // Never destroyed: threads of clients may count until the process ends.
  static Mutex& mutex = *new Mutex;
  static auto& counters = *new std::map<std::string, std::atomic<uint64_t>>;
  const MutexLock lock(mutex);
  return counters[address];
}

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr uint32_t kMaxConnections = 128;  // per thread
constexpr milliseconds kMaxPoll{60'000};
constexpr int kAttemptsWithoutServer = 4;
constexpr uint64_t kSlowestBytesPerMs = 128;  // the slowest transfer that a deadline allows for
constexpr milliseconds kOnlyAttempt{2'000};   // of a request that is not repeated

HttpResponse FailedResponse(CURLcode failure, std::string error) {
  HttpResponse response;
  response.failure = failure;
  response.error = std::move(error);
  return response;
}

}  // namespace

uint64_t S3Request::target_bytes() const {
  uint64_t bytes = target.size();
  for (const IoSlice& slice : slices) bytes += slice.length_bytes;
  return bytes;
}

struct S3Client::Operation {
  const std::string& address;
  S3Request request;
  const void* owner = nullptr;
  S3Done done;
  Clock::time_point begin;
  Clock::time_point deadline;
  Clock::time_point not_before = {};  // when the next attempt begins
  int attempt_count = 0;
  bool was_rejected = false;               // its credentials were, and others were obtained
  SharedCredentials credentials;           // of the last attempt
  std::unique_ptr<HttpTransfer> transfer;  // of the attempt in flight

  void Fail(Error error) {
    (void)CatchExhaustion("an error", [&]() -> Result<void> {
      if (error.file.empty()) error.file = ObjectPath(address, request.name);
      if (request.target_bytes() > 0) error = std::move(error).WithOffset(request.offset_bytes);
      if (attempt_count <= 1) return {};
      const auto elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
      error.message += fmt::format(" ({} attempts in {:.1f} s)", attempt_count, elapsed);
      return {};
    });
    done(std::unexpected(std::move(error)));
  }
};

/// A thread with operations. Requires that none is in flight when it is destroyed. Threads: Start
/// and Cancel may run on many threads at once.
class S3Client::Worker {
 public:
  explicit Worker(S3Client& client) : client_(client) {
    CAIRN_CHECK(multi_ != nullptr);
    curl_.multi_setopt(multi_, CURLMOPT_PIPELINING, static_cast<long>(CURLPIPE_NOTHING));
    curl_.multi_setopt(multi_, CURLMOPT_MAXCONNECTS, static_cast<long>(kMaxConnections));
  }
  ~Worker() {
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
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Begins an operation, which is in a list alone.
  void Start(Operations operation) {
    pending_count_.fetch_add(1, std::memory_order_relaxed);
    const auto start = [&]() -> Result<void> {
      const MutexLock lock(mutex_);
      if (!thread_.joinable()) {
        CAIRN_TRY_ASSIGN(thread_, StartThread("requests to the server", [this] { Run(); }));
      }
      arrived_.splice(arrived_.end(), operation);
      return {};
    };
    if (auto started = start(); !started) {
      pending_count_.fetch_sub(1, std::memory_order_relaxed);
      return operation.front().Fail(std::move(started).error());
    }
    curl_.multi_wakeup(multi_);
  }
  /// Completes the operations of this owner soon, with kCancelled.
  void Cancel(const void* owner) {
    {
      const MutexLock lock(mutex_);
      cancelled_.insert(owner);
    }
    curl_.multi_wakeup(multi_);
  }
  /// Returns the number of operations that have not completed.
  uint64_t pending_count() const { return pending_count_.load(std::memory_order_relaxed); }

 private:
  /// What the thread does.
  void Run() {
    while (true) {
      const bool stopping = TakeArrived();
      if (stopping && waiting_.empty() && active_.empty()) return;
      BeginDue();
      int running_count = 0;
      curl_.multi_perform(multi_, &running_count);
      if (!Complete()) Poll();
    }
  }

  /// Takes what callers have added. Returns whether the client ends.
  bool TakeArrived() {
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

  void CancelOwners(const std::set<const void*>& owners) {
    Operations cancelled;  // their callbacks are called last, because they may start requests
    for (Operations* const operations : {&waiting_, &active_}) {
      for (auto operation = operations->begin(); operation != operations->end();) {
        const auto next = std::next(operation);
        if (owners.contains(operation->owner)) {
          if (operation->transfer) {
            curl_.multi_remove_handle(multi_, operation->transfer->handle());
          }
          cancelled.splice(cancelled.end(), *operations, operation);
        }
        operation = next;
      }
    }
    while (!cancelled.empty()) {
      EndAttempt(cancelled, FailedResponse(CURLE_ABORTED_BY_CALLBACK, "cancelled"));
    }
  }

  void BeginDue() {
    for (auto operation = waiting_.begin();
         operation != waiting_.end() && active_.size() < kMaxConnections;) {
      const auto next = std::next(operation);
      if (operation->not_before <= Clock::now()) {
        Operations due;
        due.splice(due.end(), waiting_, operation);
        auto begun = CatchExhaustion(
            "a request", [&]() -> Result<HttpResponse> { return BeginAttempt(*operation); });
        if (!begun) begun = FailedResponse(CURLE_OUT_OF_MEMORY, std::move(begun).error().message);
        if (begun->failure == CURLE_OK) {
          active_.splice(active_.end(), due);
        } else {
          EndAttempt(due, *std::move(begun));
        }
      }
      operation = next;
    }
  }

  /// Returns a failure if the attempt cannot begin.
  HttpResponse BeginAttempt(Operation& operation) {
    ++operation.attempt_count;
    if (operation.deadline <= Clock::now()) {
      return FailedResponse(CURLE_OPERATION_TIMEDOUT, "the deadline has passed");
    }
    operation.transfer =
        std::make_unique<HttpTransfer>(client_.MakeHttpRequest(operation), client_.http_options_);
    HttpTransfer& transfer = *operation.transfer;
    if (transfer.setup() != CURLE_OK) return transfer.TakeResponse(transfer.setup());
    const CURLMcode code = curl_.multi_add_handle(multi_, transfer.handle());
    if (code == CURLM_OK) return {};
    return FailedResponse(CURLE_OUT_OF_MEMORY,
                          fmt::format("libcurl begins no request ({})", static_cast<int>(code)));
  }

  /// Ends the attempt of the first operation of a list, which completes or waits for the next one.
  void EndAttempt(Operations& operations, HttpResponse response) {
    Operations ended;
    ended.splice(ended.end(), operations, operations.begin());
    Operation& operation = ended.front();
    operation.transfer.reset();
    // Before the callback, whose caller may begin the next request at once: on this thread, which
    // has a connection.
    pending_count_.fetch_sub(1, std::memory_order_relaxed);
    if (client_.Handle(operation, std::move(response))) {
      pending_count_.fetch_add(1, std::memory_order_relaxed);
      waiting_.splice(waiting_.end(), ended);
    }
  }

  /// Ends the attempts that have completed. Returns whether there were any.
  bool Complete() {
    bool any = false;
    int left_count = 0;
    while (const CURLMsg* message = curl_.multi_info_read(multi_, &left_count)) {
      if (message->msg != CURLMSG_DONE) continue;
      any = true;
      const CURLcode code = message->data.result;
      const auto operation =
          std::ranges::find(active_, message->easy_handle,
                            [](const auto& active) { return active.transfer->handle(); });
      CAIRN_CHECK(operation != active_.end());
      curl_.multi_remove_handle(multi_, operation->transfer->handle());
      Operations completed;
      completed.splice(completed.end(), active_, operation);
      EndAttempt(completed, operation->transfer->TakeResponse(code));
    }
    return any;
  }

  void Poll() {
    {
      const MutexLock lock(mutex_);
      if (!arrived_.empty()) return;
    }
    auto left = kMaxPoll;
    if (active_.size() < kMaxConnections) {
      for (const Operation& operation : waiting_) {
        left = std::min(left, std::chrono::ceil<milliseconds>(operation.not_before - Clock::now()));
      }
    }
    curl_.multi_poll(multi_, nullptr, 0, static_cast<int>(std::max<int64_t>(0, left.count())),
                     nullptr);
  }

  S3Client& client_;
  const CurlLibrary& curl_ = Curl();
  CURLM* const multi_ = curl_.multi_init();
  std::atomic<uint64_t> pending_count_ = 0;
  // Only the thread uses these.
  Operations waiting_;  // for the time when they may begin, or for a connection
  Operations active_;   // libcurl has them

  Mutex mutex_;
  Operations arrived_ CAIRN_GUARDED_BY(mutex_);
  std::set<const void*> cancelled_ CAIRN_GUARDED_BY(mutex_);
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
  std::thread thread_ CAIRN_GUARDED_BY(mutex_);  // begins with the first request
};

S3Client::S3Client(const S3Settings& settings, CredentialsSource source)
    : settings_(settings),
      pid_(::getpid()),
      credentials_(std::move(source)),
      repeated_count_(RepeatedRequestCounter(settings_.address)) {
  http_options_.ca_bundle = settings_.ca_bundle;
  http_options_.connect_timeout = std::min(milliseconds(10'000), settings_.timeout);
  // Several attempts fit into the deadline of a request that stalls.
  http_options_.stall_timeout =
      std::clamp(std::chrono::duration_cast<std::chrono::seconds>(settings_.timeout / 4),
                 std::chrono::seconds(1), std::chrono::seconds(60));
  for (uint32_t i = 0; i < settings_.io_threads; ++i) {
    workers_.push_back(std::make_unique<Worker>(*this));
  }
}

S3Client::~S3Client() = default;

bool S3Client::is_usable() const { return ::getpid() == pid_; }

void S3Client::Start(S3Request request, const void* owner, S3Done done) {
  const Clock::time_point begin = Clock::now();
  const uint64_t bytes = request.body.size() + request.target_bytes();
  const milliseconds timeout = request.is_repeated
                                   ? settings_.timeout + milliseconds(bytes / kSlowestBytesPerMs)
                                   : std::min(settings_.timeout, kOnlyAttempt);
  Operations one;
  Operation& operation = one.emplace_back(Operation{.address = settings_.address,
                                                    .request = std::move(request),
                                                    .owner = owner,
                                                    .done = std::move(done),
                                                    .begin = begin,
                                                    .deadline = begin + timeout});
  auto credentials = CatchExhaustion("a request", [&] { return credentials_.Get(); });
  if (!credentials) return operation.Fail(std::move(credentials).error());
  operation.credentials = *std::move(credentials);
  const auto& worker = *std::ranges::min_element(
      workers_, {}, [](const std::unique_ptr<Worker>& each) { return each->pending_count(); });
  worker->Start(std::move(one));
}

Result<HttpResponse> S3Client::Perform(S3Request request) {
  // A promise would allocate an exception if Start throws, perhaps because there is no memory.
  struct Answer {
    Mutex mutex;
    CondVar arrived;
    std::optional<Result<HttpResponse>> response CAIRN_GUARDED_BY(mutex);
  };
  const auto answer = std::make_shared<Answer>();
  Start(std::move(request), /*owner=*/nullptr, [answer](Result<HttpResponse> response) {
    const MutexLock lock(answer->mutex);
    answer->response = std::move(response);
    answer->arrived.NotifyAll();
  });
  const MutexLock lock(answer->mutex);
  while (!answer->response) answer->arrived.Wait(answer->mutex);
  return *std::move(answer->response);
}

void S3Client::Cancel(const void* owner) {
  for (const std::unique_ptr<Worker>& worker : workers_) worker->Cancel(owner);
}

HttpRequest S3Client::MakeHttpRequest(const Operation& operation) const {
  const S3Request& request = operation.request;
  HttpRequest http;
  http.method = request.method;
  http.headers = request.headers;
  http.body = request.body;
  http.target = request.target;
  http.slices = request.slices;
  http.deadline = operation.deadline;
  const std::string key = request.of_bucket ? "" : settings_.prefix + request.name;
  http.url = fmt::format("{}/{}", settings_.base_url, EncodeUri(key, true));
  char separator = '?';
  for (const auto& [parameter, value] : request.parameters) {  // sorted, as signatures require
    http.url += fmt::format("{}{}={}", separator, parameter, EncodeUri(value, false));
    separator = '&';
  }
  if (const uint64_t bytes = request.target_bytes(); bytes > 0) {
    http.headers.push_back(
        fmt::format("Range: bytes={}-{}", request.offset_bytes, request.offset_bytes + bytes - 1));
  }
  // TLS protects the bytes on their way, and a CRC-32 what TLS does not. A SHA-256 of the body
  // would take longer than sending it.
  http.headers.emplace_back("x-amz-content-sha256: UNSIGNED-PAYLOAD");
  const S3Credentials& keys = *operation.credentials;
  if (!keys.session_token.empty()) {
    http.headers.push_back("x-amz-security-token: " + keys.session_token);
  }
  http.signature = HttpSignature{.scope = fmt::format("aws:amz:{}:s3", settings_.region),
                                 .access_key_id = keys.access_key_id,
                                 .secret_access_key = keys.secret_access_key};
  return http;
}

S3Outcome S3Client::Judge(const Operation& operation, const HttpResponse& response) const {
  const S3Request& request = operation.request;
  S3Outcome outcome =
      JudgeResponse(response, request.operation, settings_.endpoint, settings_.region);
  const uint64_t bytes = request.target_bytes();
  if (outcome.verdict != S3Verdict::kSuccess || bytes == 0) return outcome;
  return JudgeRange(response, request.offset_bytes, bytes, request.operation, settings_.endpoint);
}

bool S3Client::Handle(Operation& operation, HttpResponse response) {
  if (response.status != 0) has_answered_.store(true, std::memory_order_relaxed);
  S3Outcome outcome;
  std::optional<Clock::time_point> again;
  auto judged = CatchExhaustion("a request", [&]() -> Result<void> {
    outcome = Judge(operation, response);
    again = NextAttempt(operation, outcome);
    if (!again) return {};
    repeated_count_.fetch_add(1, std::memory_order_relaxed);
    operation.not_before = *again;
    CAIRN_TRY_ASSIGN(operation.credentials, credentials_.Get());
    return {};
  });
  if (!judged) {
    operation.Fail(std::move(judged).error());
  } else if (outcome.verdict == S3Verdict::kSuccess) {
    operation.done(std::move(response));
  } else if (!again) {
    operation.Fail(std::move(outcome.error));
  }
  return judged && again;
}

std::optional<Clock::time_point> S3Client::NextAttempt(Operation& operation,
                                                       const S3Outcome& outcome) {
  if (outcome.verdict == S3Verdict::kRetryWithOther) {
    if (operation.was_rejected) return std::nullopt;
    operation.was_rejected = true;
    credentials_.Reject(operation.credentials);
    return Clock::time_point();
  }
  if (outcome.verdict != S3Verdict::kRetry || !operation.request.is_repeated) return std::nullopt;
  const bool is_absent = outcome.was_unreachable && !has_answered_.load(std::memory_order_relaxed);
  if (is_absent && operation.attempt_count >= kAttemptsWithoutServer) return std::nullopt;
  const milliseconds pause =
      std::max(PauseBefore(operation.attempt_count - 1), outcome.retry_after);
  const Clock::time_point not_before = Clock::now() + pause;
  if (not_before >= operation.deadline) return std::nullopt;
  return not_before;
}

}  // namespace cairn::kv::internal
