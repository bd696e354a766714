// The services of containers and of machines, and the documents that they return.

#include "kv/internal/s3/credential_services.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "kv/internal/s3/credential_request.h"
#include "kv/internal/s3/s3_settings.h"

namespace cairn::kv::internal {
namespace {

using MaybeCredentials = Result<std::optional<S3Credentials>>;
using std::chrono::milliseconds;

}  // namespace

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
