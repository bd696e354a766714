// The services of containers and of machines, and the documents that they return.

#include "kv/storage/s3/internal/credential_services.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kv/storage/s3/internal/curl_library.h"
#include "kv/storage/s3/internal/http_transfer.h"
#include "kv/storage/s3/internal/s3_settings.h"

namespace cairn::kv::internal {
namespace {

using MaybeCredentials = Result<std::optional<S3Credentials>>;
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

bool MayBeRepeated(const HttpResponse& response) {
  return response.failure != HttpFailure::kNone || response.status >= 500 || response.status == 429;
}

// Between half of and all of a time that doubles with each attempt, so that many processes do not
// ask again together.
milliseconds WaitBefore(int attempt) {
  thread_local std::minstd_rand random(std::random_device{}());
  const int64_t longest = int64_t{100} << std::min(attempt, 5);
  return milliseconds(std::uniform_int_distribution<int64_t>(longest / 2, longest)(random));
}

struct ServiceRequest {
  std::string url;
  std::string method = "GET";
  std::vector<std::string> headers;
  milliseconds timeout{5'000};
  int attempts = 5;
};

HttpResponse AskService(const ServiceRequest& ask, const CredentialContext& context) {
  HttpResponse response;
  for (int attempt = 0; attempt < ask.attempts; ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(WaitBefore(attempt));
    HttpRequest request;
    request.url = ask.url;
    request.method = ask.method;
    request.headers = ask.headers;
    request.deadline = Clock::now() + ask.timeout;
    HttpOptions options;
    options.ca_bundle = context.ca_bundle;
    options.connect_timeout = ask.timeout;
    response = PerformHttpRequest(request, options);
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

// Returns "" if the document has no such text.
std::string TextIn(const nlohmann::json& document, const char* name) {
  const auto found = document.find(name);
  return found != document.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::unexpected<Error> RefuseCredentials(std::string message) {
  return Fail(ErrorCode::kFailedPrecondition, std::move(message));
}

}  // namespace

bool MayAskForCredentials(const std::string& url) {
  const std::string scheme = PartOfUrl(url, CURLUPART_SCHEME);
  if (scheme == "https") return true;
  if (scheme != "http") return false;
  const std::string host = PartOfUrl(url, CURLUPART_HOST);
  return IsThisMachine(host) || host == "169.254.170.2" || host == "169.254.170.23" ||
         host == "[fd00:ec2::23]";
}

std::optional<std::chrono::system_clock::time_point> ParseTime(const std::string& text) {
  std::tm fields = {};
  const char* rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &fields);
  if (rest == nullptr) return std::nullopt;
  if (*rest == '.') rest += 1 + std::string_view(rest + 1).find_first_not_of("0123456789");
  const std::string_view zone(rest);
  if (zone != "Z" && zone != "+00:00" && zone != "+0000") return std::nullopt;
  // The clock counts nanoseconds and ends in 2262, but "9999-12-31T23:59:59Z" is a usual time.
  using std::chrono::system_clock;
  constexpr auto kLast =
      std::chrono::floor<std::chrono::seconds>(system_clock::time_point::max().time_since_epoch());
  const std::chrono::seconds seconds(::timegm(&fields));
  return system_clock::time_point(std::clamp(seconds, std::chrono::seconds(0), kLast));
}

Result<S3Credentials> ParseCredentialsJson(std::string_view text, std::string_view source) {
  const nlohmann::json document = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  S3Credentials credentials;
  if (document.is_object()) {
    credentials.access_key_id = TextIn(document, "AccessKeyId");
    credentials.secret_access_key = TextIn(document, "SecretAccessKey");
    credentials.session_token = TextIn(document, "Token");
    if (credentials.session_token.empty()) {
      credentials.session_token = TextIn(document, "SessionToken");
    }
    const std::string expiry = TextIn(document, "Expiration");
    credentials.expiry = ParseTime(expiry);
    if (!expiry.empty() && !credentials.expiry) {
      return RefuseCredentials(
          fmt::format("{} supplied an expiration that is not a time in UTC", source));
    }
  }
  if (credentials.access_key_id.empty() || credentials.secret_access_key.empty()) {
    return RefuseCredentials(
        fmt::format("{} supplied no JSON document with AccessKeyId and SecretAccessKey", source));
  }
  return credentials;
}

MaybeCredentials ContainerCredentials(const CredentialContext& context) {
  constexpr std::string_view kService = "the credential service of the container";
  const std::string relative = context.environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  std::string url = context.environment("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (!relative.empty()) url = "http://169.254.170.2" + relative;
  if (url.empty()) return std::nullopt;
  if (!MayAskForCredentials(url)) {
    return RefuseCredentials(
        "AWS_CONTAINER_CREDENTIALS_FULL_URI is neither https:// nor on this machine");
  }
  ServiceRequest request{.url = url};
  std::string token = context.environment("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  const std::string path = context.environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
  if (!path.empty()) {
    CAIRN_TRY_ASSIGN(token, ReadSecretFile(path, "authorization token of the container"));
  }
  if (token.find_first_of("\r\n") != std::string::npos) {
    return RefuseCredentials("AWS_CONTAINER_AUTHORIZATION_TOKEN contains a line break");
  }
  if (!token.empty()) request.headers.push_back("Authorization: " + token);
  const HttpResponse response = AskService(request, context);
  if (response.status != 200) return Fail(ServiceError(response, kService));
  return ParseCredentialsJson(response.body, kService);
}

MaybeCredentials MachineCredentials(const CredentialContext& context) {
  constexpr std::string_view kService = "the metadata service of the machine";
  std::string disabled = context.environment("AWS_EC2_METADATA_DISABLED");
  std::ranges::transform(disabled, disabled.begin(),
                         [](char c) { return static_cast<char>(c | 0x20); });
  if (disabled == "true") return std::nullopt;
  std::string endpoint = context.environment("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  if (endpoint.empty()) endpoint = "http://169.254.169.254";
  while (endpoint.ends_with('/')) endpoint.pop_back();

  // Elsewhere than on EC2 nothing answers, so this waits for one second only.
  const ServiceRequest token_request{.url = endpoint + "/latest/api/token",
                                     .method = "PUT",
                                     .headers = {"X-aws-ec2-metadata-token-ttl-seconds: 21600"},
                                     .timeout = milliseconds(1000),
                                     .attempts = 1};
  const HttpResponse token = AskService(token_request, context);
  if (token.status != 200 || token.body.find_first_of("\r\n") != std::string::npos) {
    return std::nullopt;
  }
  const std::string base = endpoint + "/latest/meta-data/iam/security-credentials/";
  const std::vector<std::string> headers = {"X-aws-ec2-metadata-token: " + token.body};
  const HttpResponse role = AskService({.url = base, .headers = headers}, context);
  if (role.status == 404) return std::nullopt;  // the machine has no role
  if (role.status != 200) return Fail(ServiceError(role, kService));
  const std::string name = role.body.substr(0, role.body.find_first_of("\r\n"));
  const HttpResponse response =
      AskService({.url = base + EncodeUri(name, false), .headers = headers}, context);
  if (response.status != 200) return Fail(ServiceError(response, kService));
  return ParseCredentialsJson(response.body, kService);
}

}  // namespace cairn::kv::internal
