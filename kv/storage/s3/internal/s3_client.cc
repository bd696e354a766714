// Attempts, and what happens between them.

#include "kv/storage/s3/internal/s3_client.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <map>
#include <utility>

#include "kv/base/catch_exhaustion.h"
#include "kv/base/mutex.h"

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
constexpr int kAttemptsWithoutServer = 4;
constexpr uint64_t kSlowestBytesPerMs = 128;  // the slowest transfer that a deadline allows for

Error Cancelled(const std::string& operation) {
  return Error{.code = ErrorCode::kCancelled,
               .message = fmt::format("cannot {}: cancelled", operation)};
}

}  // namespace

uint64_t S3Request::target_bytes() const {
  uint64_t bytes = target.size();
  for (const IoSlice& slice : slices) bytes += slice.length_bytes;
  return bytes;
}

struct S3Client::Operation {
  S3Request request;
  uint64_t id = 0;
  S3Done done;
  Clock::time_point begin;
  Clock::time_point deadline;
  int attempt_count = 0;
  bool was_rejected = false;  // its credentials were, and others were obtained
  uint64_t credentials_version = 0;

  void Fail(Error error) {
    (void)CatchExhaustion("an error", [&]() -> Result<void> {
      if (error.file.empty()) error.file = request.file;
      if (attempt_count <= 1) return {};
      const auto elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
      error.message += fmt::format(" ({} attempts in {:.1f} s)", attempt_count, elapsed);
      return {};
    });
    done(std::unexpected(std::move(error)));
  }

  /// Calls `work`, which takes the operation further: somebody will call `done`, or has called it.
  /// If there is not enough memory for that, the operation fails.
  template <typename Work>
  void Attempt(const Work& work) {
    auto worked = CatchExhaustion("a request", [&]() -> Result<void> {
      work();
      return {};
    });
    if (!worked) Fail(std::move(worked).error());
  }
};

S3Client::S3Client(const S3Settings& settings, CredentialsSource source)
    : settings_(settings),
      pid_(::getpid()),
      credentials_(std::move(source)),
      repeated_count_(RepeatedRequestCounter(settings_.address)) {
  HttpOptions options;
  options.ca_bundle = settings_.ca_bundle;
  options.connect_timeout = std::min(milliseconds(10'000), settings_.timeout);
  // Several attempts fit into the deadline of a request that stalls.
  options.stall_timeout =
      std::clamp(std::chrono::duration_cast<std::chrono::seconds>(settings_.timeout / 4),
                 std::chrono::seconds(1), std::chrono::seconds(60));
  for (uint32_t i = 0; i < settings_.io_threads; ++i) {
    clients_.push_back(std::make_unique<HttpClient>(options, kMaxConnections));
  }
}

S3Client::~S3Client() {
  std::thread restart_thread;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    restart_thread = std::move(restart_thread_);
    changed_.NotifyAll();
  }
  if (restart_thread.joinable()) restart_thread.join();
  clients_.clear();
}

bool S3Client::is_usable() const { return ::getpid() == pid_; }

S3Client::SharedOperation S3Client::MakeOperation(S3Request request, uint64_t id,
                                                  S3Done done) const {
  auto operation = std::make_shared<Operation>();
  const uint64_t bytes = request.body.size() + request.target_bytes();
  operation->request = std::move(request);
  operation->id = id;
  operation->done = std::move(done);
  operation->begin = Clock::now();
  operation->deadline =
      operation->begin + settings_.timeout + milliseconds(bytes / kSlowestBytesPerMs);
  return operation;
}

void S3Client::Start(S3Request request, uint64_t id, S3Done done) {
  Restart(MakeOperation(std::move(request), id, std::move(done)));
}

void S3Client::StartFromCallback(S3Request request, S3Done done) {
  const SharedOperation operation = MakeOperation(std::move(request), /*id=*/0, std::move(done));
  operation->Attempt([&] { SendOrRestartLater(operation, Clock::time_point()); });
}

Result<HttpResponse> S3Client::Perform(S3Request request) {
  std::promise<Result<HttpResponse>> promise;
  std::future<Result<HttpResponse>> result = promise.get_future();
  Start(std::move(request), /*id=*/0,
        [promise = std::move(promise)](Result<HttpResponse> response) mutable {
          promise.set_value(std::move(response));
        });
  return result.get();
}

void S3Client::Cancel(uint64_t id) {
  for (const std::unique_ptr<HttpClient>& client : clients_) client->Cancel(id);
}

void S3Client::Restart(const SharedOperation& operation) {
  Result<SharedCredentials> credentials;
  operation->Attempt([&] {
    if (!settings_.anonymous) credentials = credentials_.Get();
    if (credentials) Send(operation, *credentials, Clock::time_point());
  });
  if (!credentials) operation->Fail(std::move(credentials).error());
}

HttpRequest S3Client::MakeHttpRequest(const Operation& operation,
                                      const SharedCredentials& credentials) const {
  const S3Request& request = operation.request;
  HttpRequest http;
  http.method = request.method;
  http.headers = request.headers;
  http.body = request.body;
  http.target = request.target;
  http.slices = request.slices;
  http.deadline = operation.deadline;
  http.url = fmt::format("{}/{}{}{}", settings_.base_url, EncodeUri(request.key, true),
                         request.query.empty() ? "" : "?", request.query);
  if (const uint64_t bytes = request.target_bytes(); bytes > 0) {
    http.headers.push_back(
        fmt::format("Range: bytes={}-{}", request.offset_bytes, request.offset_bytes + bytes - 1));
  }
  if (credentials == nullptr) return http;
  // TLS protects the bytes on their way, and a CRC-32 what TLS does not. A SHA-256 of the body
  // would take longer than sending it.
  http.headers.emplace_back("x-amz-content-sha256: UNSIGNED-PAYLOAD");
  const S3Credentials& keys = credentials->credentials;
  if (!keys.session_token.empty()) {
    http.headers.push_back("x-amz-security-token: " + keys.session_token);
  }
  http.signature = HttpSignature{.scope = fmt::format("aws:amz:{}:s3", settings_.region),
                                 .access_key_id = keys.access_key_id,
                                 .secret_access_key = keys.secret_access_key};
  return http;
}

void S3Client::Send(const SharedOperation& operation, const SharedCredentials& credentials,
                    Clock::time_point not_before) {
  HttpRequest http = MakeHttpRequest(*operation, credentials);
  http.not_before = not_before;
  operation->credentials_version = credentials == nullptr ? 0 : credentials->version;
  ++operation->attempt_count;
  LeastBusyClient().Start(std::move(http), operation->id, [this, operation](HttpResponse response) {
    OnResponse(operation, std::move(response));
  });
}

HttpClient& S3Client::LeastBusyClient() {
  return **std::ranges::min_element(clients_, {}, [](const std::unique_ptr<HttpClient>& client) {
    return client->pending_count();
  });
}

S3Outcome S3Client::Judge(const Operation& operation, const HttpResponse& response) const {
  const S3Request& request = operation.request;
  S3Outcome outcome =
      JudgeResponse(response, request.operation, settings_.endpoint, settings_.region);
  const uint64_t bytes = request.target_bytes();
  if (outcome.verdict != S3Verdict::kSuccess || bytes == 0) return outcome;
  return JudgeRange(response, {request.offset_bytes, bytes}, request.operation, settings_.endpoint);
}

void S3Client::OnResponse(const SharedOperation& operation, HttpResponse response) {
  if (response.status != 0) has_answered_.store(true, std::memory_order_relaxed);
  S3Outcome outcome;
  bool is_repeated = false;
  auto judged = CatchExhaustion("a request", [&]() -> Result<void> {
    outcome = Judge(*operation, response);
    is_repeated = outcome.verdict != S3Verdict::kSuccess && TryAgain(operation, outcome);
    return {};
  });
  if (!judged) return operation->Fail(std::move(judged).error());
  if (outcome.verdict == S3Verdict::kSuccess) return operation->done(std::move(response));
  if (!is_repeated) operation->Fail(std::move(outcome.error));
}

bool S3Client::TryAgain(const SharedOperation& operation, const S3Outcome& outcome) {
  switch (outcome.verdict) {
    case S3Verdict::kSuccess:
    case S3Verdict::kFailed:
      return false;
    case S3Verdict::kRetryWithOther:
      if (operation->was_rejected || operation->credentials_version == 0) return false;
      operation->was_rejected = true;
      credentials_.Reject(operation->credentials_version);
      repeated_count_.fetch_add(1, std::memory_order_relaxed);
      RestartLater(operation);
      return true;
    case S3Verdict::kRetry:
      break;
  }
  const bool was_unreachable =
      !has_answered_.load(std::memory_order_relaxed) && !outcome.may_have_been_performed;
  if (was_unreachable && operation->attempt_count >= kAttemptsWithoutServer) return false;
  const milliseconds pause =
      std::max(PauseBefore(operation->attempt_count - 1), outcome.retry_after);
  const Clock::time_point not_before = Clock::now() + pause;
  if (not_before >= operation->deadline) return false;
  repeated_count_.fetch_add(1, std::memory_order_relaxed);
  SendOrRestartLater(operation, not_before);
  return true;
}

void S3Client::SendOrRestartLater(const SharedOperation& operation, Clock::time_point not_before) {
  const SharedCredentials credentials = settings_.anonymous ? nullptr : credentials_.GetCached();
  if (credentials == nullptr && !settings_.anonymous) {
    RestartLater(operation);
  } else {
    Send(operation, credentials, not_before);
  }
}

void S3Client::RestartLater(const SharedOperation& operation) {
  auto later = CatchExhaustion("a request", [&]() -> Result<void> {
    const MutexLock lock(mutex_);
    if (stopping_) return Fail(Cancelled(operation->request.operation));
    if (!restart_thread_.joinable()) {
      CAIRN_TRY_ASSIGN(restart_thread_,
                       StartThread("requests to the server", [this] { RunRestarts(); }));
    }
    restarts_.push_back(operation);
    changed_.NotifyAll();
    return {};
  });
  if (!later) operation->Fail(std::move(later).error());
}

void S3Client::RunRestarts() {
  for (;;) {
    SharedOperation operation;
    bool stopping = false;
    {
      const MutexLock lock(mutex_);
      while (restarts_.empty() && !stopping_) changed_.Wait(mutex_);
      if (restarts_.empty()) return;
      operation = std::move(restarts_.front());
      restarts_.pop_front();
      stopping = stopping_;
    }
    if (!stopping) {
      Restart(operation);
    } else {
      operation->Attempt([&] { operation->Fail(Cancelled(operation->request.operation)); });
    }
  }
}

}  // namespace cairn::kv::internal
