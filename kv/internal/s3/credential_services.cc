// Requests to the services, with the limits on where secrets may be requested from.

#include "kv/internal/s3/credential_services.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <ctime>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <pugixml.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kv/internal/s3/http_transfer.h"
#include "kv/internal/s3/s3_settings.h"

namespace cairn::kv::internal {
namespace {

using MaybeCredentials = Result<std::optional<S3Credentials>>;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kServiceTimeout{5'000};
constexpr int kServiceAttempts = 3;

std::unexpected<Error> Refused(std::string message) {
  return Fail(ErrorCode::kFailedPrecondition, std::move(message));
}

struct ServiceRequest {
  std::string url;
  std::string method = "GET";
  std::vector<std::string> headers;
  std::string body;
  bool use_proxy = false;
  milliseconds timeout = kServiceTimeout;
  int attempts = kServiceAttempts;
};

HttpResponse Ask(const ServiceRequest& ask, const CredentialContext& context) {
  HttpResponse response;
  for (int attempt = 0; attempt < ask.attempts; ++attempt) {
    HttpRequest request;
    request.url = ask.url;
    request.method = ask.method;
    request.headers = ask.headers;
    request.body = std::as_bytes(std::span(ask.body));
    request.deadline = Clock::now() + ask.timeout;
    HttpOptions options;
    options.ca_bundle = context.ca_bundle;
    options.connect_timeout = ask.timeout;
    response = PerformHttpRequest(request, options, ask.use_proxy);
    const bool retry = response.failure != HttpFailure::kNone || response.status >= 500;
    if (!retry) break;
  }
  return response;
}

// The body of a response may contain a secret, so only the status is named.
Error ServiceError(const HttpResponse& response, std::string_view service) {
  if (response.failure != HttpFailure::kNone) {
    return Error{.code = ErrorCode::kUnavailable,
                 .message = fmt::format("{} does not answer: {}", service, response.error)};
  }
  return Error{
      .code = response.status >= 500 ? ErrorCode::kUnavailable : ErrorCode::kFailedPrecondition,
      .message = fmt::format("{} answered with status {}", service, response.status)};
}

Result<std::string> ReadToken(const std::string& path, std::string_view what) {
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

std::string PartOfUrl(const std::string& url, CURLUPart part) {
  const std::unique_ptr<CURLU, void (*)(CURLU*)> handle(curl_url(), &curl_url_cleanup);
  if (curl_url_set(handle.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK) return {};
  char* text = nullptr;
  if (curl_url_get(handle.get(), part, &text, 0) != CURLUE_OK) return {};
  std::string value(text);
  curl_free(text);
  return value;
}

// The hosts that AWS SDKs accept: any over TLS, otherwise only the machine itself and the addresses
// of the agents of ECS and EKS.
bool MayAskForCredentials(const std::string& url) {
  const std::string scheme = PartOfUrl(url, CURLUPART_SCHEME);
  if (scheme == "https") return true;
  if (scheme != "http") return false;
  const std::string host = PartOfUrl(url, CURLUPART_HOST);
  return host == "localhost" || host.starts_with("127.") || host == "[::1]" ||
         host == "169.254.170.2" || host == "169.254.170.23" || host == "[fd00:ec2::23]";
}

std::string StringOf(const nlohmann::json& document, const char* name) {
  const auto found = document.find(name);
  return found != document.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

std::optional<std::chrono::system_clock::time_point> ParseTime(const std::string& text) {
  std::tm fields = {};
  const char* rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &fields);
  if (rest == nullptr) return std::nullopt;
  if (*rest == '.') rest += 1 + std::string_view(rest + 1).find_first_not_of("0123456789");
  const std::string_view zone(rest);
  if (zone != "Z" && zone != "+00:00" && zone != "+0000") return std::nullopt;
  return std::chrono::system_clock::from_time_t(::timegm(&fields));
}

Result<S3Credentials> ParseCredentialsJson(std::string_view text, std::string_view source) {
  const nlohmann::json document = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  S3Credentials credentials;
  if (document.is_object()) {
    credentials.access_key_id = StringOf(document, "AccessKeyId");
    credentials.secret_access_key = StringOf(document, "SecretAccessKey");
    credentials.session_token = StringOf(document, "Token");
    if (credentials.session_token.empty()) {
      credentials.session_token = StringOf(document, "SessionToken");
    }
    const std::string expiry = StringOf(document, "Expiration");
    credentials.expiry = ParseTime(expiry);
    if (!expiry.empty() && !credentials.expiry) {
      return Refused(fmt::format("{} supplied an expiration that is not a time in UTC", source));
    }
  }
  if (credentials.access_key_id.empty() || credentials.secret_access_key.empty()) {
    return Refused(
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
    return Refused("AWS_CONTAINER_CREDENTIALS_FULL_URI is neither https:// nor on this machine");
  }
  ServiceRequest request{.url = url};
  std::string token = context.environment("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  const std::string path = context.environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
  if (!path.empty()) {
    CAIRN_TRY_ASSIGN(token, ReadToken(path, "authorization token of the container"));
  }
  if (token.find_first_of("\r\n") != std::string::npos) {
    return Refused("AWS_CONTAINER_AUTHORIZATION_TOKEN contains a line break");
  }
  if (!token.empty()) request.headers.push_back("Authorization: " + token);
  const HttpResponse response = Ask(request, context);
  if (response.status != 200) return Fail(ServiceError(response, kService));
  return ParseCredentialsJson(response.body, kService);
}

MaybeCredentials WebIdentityCredentials(const CredentialContext& context) {
  constexpr std::string_view kService = "AWS STS";
  std::string path = context.environment("AWS_WEB_IDENTITY_TOKEN_FILE");
  std::string role = context.environment("AWS_ROLE_ARN");
  std::string session = context.environment("AWS_ROLE_SESSION_NAME");
  if (path.empty() || context.profile_is_explicit) {
    path = context.profile.Get("web_identity_token_file");
    role = context.profile.Get("role_arn");
    session = context.profile.Get("role_session_name");
  }
  if (path.empty() || role.empty()) return std::nullopt;
  CAIRN_TRY_ASSIGN(const std::string token, ReadToken(path, "web identity token"));
  std::string endpoint = context.environment("AWS_ENDPOINT_URL_STS");
  if (endpoint.empty()) {
    const bool is_china = context.region.starts_with("cn-");
    endpoint = fmt::format("https://sts.{}.amazonaws.com{}", context.region, is_china ? ".cn" : "");
  }
  const ServiceRequest request{
      .url = endpoint + "/",
      .method = "POST",
      .headers = {"Accept: application/xml", "Content-Type: application/x-www-form-urlencoded"},
      .body =
          fmt::format("Action=AssumeRoleWithWebIdentity&RoleArn={}&RoleSessionName={}&"
                      "Version=2011-06-15&WebIdentityToken={}",
                      EncodeUri(role, false), EncodeUri(session.empty() ? "cairn" : session, false),
                      EncodeUri(token, false)),
      .use_proxy = true};
  const HttpResponse response = Ask(request, context);
  if (response.status != 200) return Fail(ServiceError(response, kService));
  pugi::xml_document document;
  document.load_buffer(response.body.data(), response.body.size());
  const pugi::xml_node node = document.first_element_by_path(
      "AssumeRoleWithWebIdentityResponse/"
      "AssumeRoleWithWebIdentityResult/Credentials");
  S3Credentials credentials{.access_key_id = node.child_value("AccessKeyId"),
                            .secret_access_key = node.child_value("SecretAccessKey"),
                            .session_token = node.child_value("SessionToken"),
                            .expiry = ParseTime(node.child_value("Expiration"))};
  if (credentials.access_key_id.empty() || credentials.secret_access_key.empty()) {
    return Refused("AWS STS supplied no credentials for the web identity");
  }
  return credentials;
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
  const HttpResponse token = Ask(token_request, context);
  if (token.status != 200 || token.body.find_first_of("\r\n") != std::string::npos) {
    return std::nullopt;
  }
  const std::string base = endpoint + "/latest/meta-data/iam/security-credentials/";
  const std::vector<std::string> headers = {"X-aws-ec2-metadata-token: " + token.body};
  const HttpResponse role = Ask({.url = base, .headers = headers}, context);
  if (role.status == 404) return std::nullopt;  // the machine has no role
  if (role.status != 200) return Fail(ServiceError(role, kService));
  const std::string name = role.body.substr(0, role.body.find_first_of("\r\n"));
  const HttpResponse response =
      Ask({.url = base + EncodeUri(name, false), .headers = headers}, context);
  if (response.status != 200) return Fail(ServiceError(response, kService));
  return ParseCredentialsJson(response.body, kService);
}

}  // namespace cairn::kv::internal
