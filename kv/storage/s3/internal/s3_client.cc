// Attempts, and what happens between them.

#include "kv/storage/s3/internal/s3_client.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
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
constexpr int kAttemptsWithoutServer = 4;
constexpr uint64_t kSlowestBytesPerMs = 128;  // the slowest transfer that a deadline allows for
constexpr milliseconds kOnlyAttempt{2'000};   // of a request that is not repeated

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
  int attempt_count = 0;
  bool was_rejected = false;      // its credentials were, and others were obtained
  SharedCredentials credentials;  // of the last attempt; null if it was not signed

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

bool S3Client::is_usable() const { return ::getpid() == pid_; }

void S3Client::Start(S3Request request, const void* owner, S3Done done) {
  auto operation = std::make_shared<Operation>(settings_.address);
  const uint64_t bytes = request.body.size() + request.target_bytes();
  operation->request = std::move(request);
  operation->owner = owner;
  operation->done = std::move(done);
  operation->begin = Clock::now();
  operation->deadline =
      operation->begin + (operation->request.is_repeated
                              ? settings_.timeout + milliseconds(bytes / kSlowestBytesPerMs)
                              : std::min(settings_.timeout, kOnlyAttempt));
  Send(operation, Clock::time_point());
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
  for (const std::unique_ptr<HttpClient>& client : clients_) client->Cancel(owner);
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
  if (operation.credentials == nullptr) return http;
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

void S3Client::Send(const SharedOperation& operation, Clock::time_point not_before) {
  auto sent = CatchExhaustion("a request", [&]() -> Result<void> {
    if (!settings_.anonymous) {
      CAIRN_TRY_ASSIGN(operation->credentials, credentials_.Get());
    }
    HttpRequest http = MakeHttpRequest(*operation);
    http.not_before = not_before;
    ++operation->attempt_count;
    LeastBusyClient().Start(
        std::move(http), operation->owner,
        [this, operation](HttpResponse response) { OnResponse(operation, std::move(response)); });
    return {};
  });
  if (!sent) operation->Fail(std::move(sent).error());
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
  return JudgeRange(response, request.offset_bytes, bytes, request.operation, settings_.endpoint);
}

void S3Client::OnResponse(const SharedOperation& operation, HttpResponse response) {
  if (response.status != 0) has_answered_.store(true, std::memory_order_relaxed);
  S3Outcome outcome;
  std::optional<Clock::time_point> again;
  auto judged = CatchExhaustion("a request", [&]() -> Result<void> {
    outcome = Judge(*operation, response);
    again = NextAttempt(*operation, outcome);
    return {};
  });
  if (!judged) return operation->Fail(std::move(judged).error());
  if (outcome.verdict == S3Verdict::kSuccess) return operation->done(std::move(response));
  if (!again) return operation->Fail(std::move(outcome.error));
  repeated_count_.fetch_add(1, std::memory_order_relaxed);
  Send(operation, *again);
}

std::optional<Clock::time_point> S3Client::NextAttempt(Operation& operation,
                                                       const S3Outcome& outcome) {
  if (outcome.verdict == S3Verdict::kRetryWithOther) {
    if (operation.was_rejected || operation.credentials == nullptr) return std::nullopt;
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
