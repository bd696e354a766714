#include "kv/internal/s3/credential_request.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <thread>
#include <utility>

#include "kv/internal/s3/curl_library.h"
#include "kv/internal/s3/http_transfer.h"

namespace cairn::kv::internal {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

std::string PartOfUrl(const std::string& url, CURLUPart part) {
  const CurlLibrary& curl = Curl();
  const std::unique_ptr<CURLU, decltype(curl.url_cleanup)> handle(curl.url(), curl.url_cleanup);
  if (curl.url_set(handle.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK) return {};
  char* text = nullptr;
  if (curl.url_get(handle.get(), part, &text, 0) != CURLUE_OK) return {};
  std::string value(text);
  curl.free(text);
  return value;
}

// Returns whether `host` is a literal address of the machine itself, or its name. Names of other
// machines may begin with numbers ("127.example.com").
bool IsThisMachine(const std::string& host) {
  in_addr ipv4{};
  if (::inet_pton(AF_INET, host.c_str(), &ipv4) == 1) return ::ntohl(ipv4.s_addr) >> 24 == 127;
  return host == "localhost" || host == "[::1]";
}

// The codes with which AWS refuses a request that may succeed later, or the parts that they have in
// common. They are in the body of a response with status 400 or 403.
bool IsThrottled(const HttpResponse& response) {
  if (response.status == 429) return true;
  if (response.status < 400 || response.status >= 500) return false;
  return std::ranges::any_of(
      std::array{"Throttl", "RequestLimitExceeded", "TooManyRequests", "SlowDown",
                 "IDPCommunicationError"},
      [&](const char* code) { return response.body.find(code) != std::string::npos; });
}

bool MayBeRepeated(const HttpResponse& response) {
  return response.failure != HttpFailure::kNone || response.status >= 500 || IsThrottled(response);
}

// Between half of and all of a time that doubles with each attempt, so that many processes do not
// ask again together.
milliseconds WaitBefore(int attempt) {
  thread_local std::minstd_rand random(std::random_device{}());
  const int64_t longest = int64_t{100} << std::min(attempt, 5);
  return milliseconds(std::uniform_int_distribution<int64_t>(longest / 2, longest)(random));
}

}  // namespace

HttpResponse AskService(const ServiceRequest& ask, const CredentialContext& context) {
  HttpResponse response;
  for (int attempt = 0; attempt < ask.attempts; ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(WaitBefore(attempt));
    HttpRequest request;
    request.url = ask.url;
    request.method = ask.method;
    request.headers = ask.headers;
    request.signature = ask.signature;
    request.body = std::as_bytes(std::span(ask.body));
    request.deadline = Clock::now() + ask.timeout;
    HttpOptions options;
    options.ca_bundle = context.ca_bundle;
    options.connect_timeout = ask.timeout;
    // Without TLS, a proxy would see the secrets; MayAskForCredentials allows that only nearby.
    response = PerformHttpRequest(request, options, ask.use_proxy && ask.url.starts_with("https:"));
    if (!MayBeRepeated(response)) break;
  }
  return response;
}

Error ServiceError(const HttpResponse& response, std::string_view service) {
  if (response.failure != HttpFailure::kNone) {
    return Error{.code = ErrorCode::kUnavailable,
                 .message = fmt::format("{} does not answer: {}", service, response.error)};
  }
  return Error{
      .code = MayBeRepeated(response) ? ErrorCode::kUnavailable : ErrorCode::kFailedPrecondition,
      .message = fmt::format("{} answered with status {}", service, response.status)};
}

Result<std::string> ReadSecretFile(const std::string& path, std::string_view what) {
  std::ifstream file(path);
  std::string token((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  if (!file || token.empty() || token.find_first_of("\r\n") != std::string::npos) {
    return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                      .message = fmt::format("cannot read the {}", what),
                      .file = path});
  }
  return token;
}

bool MayAskForCredentials(const std::string& url) {
  const std::string scheme = PartOfUrl(url, CURLUPART_SCHEME);
  if (scheme == "https") return true;
  if (scheme != "http") return false;
  const std::string host = PartOfUrl(url, CURLUPART_HOST);
  return IsThisMachine(host) || host == "169.254.170.2" || host == "169.254.170.23" ||
         host == "[fd00:ec2::23]";
}

std::string TextIn(const nlohmann::json& document, const char* name) {
  const auto found = document.find(name);
  return found != document.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::unexpected<Error> RefuseCredentials(std::string message) {
  return Fail(ErrorCode::kFailedPrecondition, std::move(message));
}

}  // namespace cairn::kv::internal
