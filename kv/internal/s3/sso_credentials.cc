// Tokens in the cache of AWS tools, and the request for the credentials of a role.

#include "kv/internal/s3/sso_credentials.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "kv/internal/s3/aws_profile.h"
#include "kv/internal/s3/credential_request.h"
#include "kv/internal/s3/credential_services.h"
#include "kv/internal/s3/s3_settings.h"

namespace cairn::kv::internal {
namespace {

namespace fs = std::filesystem;
using std::chrono::system_clock;

constexpr std::string_view kService = "AWS SSO";
constexpr uintmax_t kMaxTokenFileBytes = 1 << 20;

struct SsoToken {
  std::string token;
  system_clock::time_point expiry;
};

struct SsoProfile {
  std::string start_url;
  std::string region;
  std::string account;
  std::string role;
};

nlohmann::json ReadJson(const fs::path& path) {
  std::error_code error;
  if (fs::file_size(path, error) > kMaxTokenFileBytes || error) return {};
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

// Start URLs with and without '/' or '#' at their ends are the same.
std::string Trimmed(std::string url) {
  while (url.ends_with('/') || url.ends_with('#')) url.pop_back();
  return url;
}

// Older tools write "2020-01-02T03:04:05UTC".
std::optional<system_clock::time_point> ParseExpiry(std::string text) {
  if (text.ends_with("UTC")) text.replace(text.size() - 3, 3, "Z");
  return ParseTime(text);
}

/// Returns the token for a start URL that expires last.
std::optional<SsoToken> FindToken(const SsoProfile& sso, const fs::path& folder) {
  std::optional<SsoToken> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() != ".json") continue;
    const nlohmann::json document = ReadJson(entry->path());
    if (!document.is_object()) continue;
    const auto expiry = ParseExpiry(TextIn(document, "expiresAt"));
    const std::string token = TextIn(document, "accessToken");
    if (token.empty() || !expiry || token.find_first_of("\r\n") != std::string::npos) continue;
    if (Trimmed(TextIn(document, "startUrl")) != Trimmed(sso.start_url)) continue;
    if (!found || *expiry > found->expiry) found = SsoToken{.token = token, .expiry = *expiry};
  }
  return found;
}

Result<SsoProfile> SsoProfileOf(const AwsProfile& profile) {
  const auto get = [&](const char* name) {
    std::string value = profile.Get(std::string("sso-session.") + name);
    return value.empty() ? profile.Get(name) : value;
  };
  SsoProfile sso{.start_url = get("sso_start_url"),
                 .region = get("sso_region"),
                 .account = profile.Get("sso_account_id"),
                 .role = profile.Get("sso_role_name")};
  for (const auto& [name, value] :
       {std::pair("sso_start_url", &sso.start_url), std::pair("sso_region", &sso.region),
        std::pair("sso_account_id", &sso.account), std::pair("sso_role_name", &sso.role)}) {
    if (!value->empty()) continue;
    return RefuseCredentials(
        fmt::format("the AWS profile \"{}\" uses SSO, but {} is not set in it "
                    "or its sso-session",
                    profile.name, name));
  }
  if (!IsRegionName(sso.region)) {
    return RefuseCredentials(fmt::format(
        "sso_region of the AWS profile \"{}\" is not the name of a region", profile.name));
  }
  return sso;
}

Result<S3Credentials> ParseRoleCredentials(const HttpResponse& response) {
  const nlohmann::json document =
      nlohmann::json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  S3Credentials credentials;
  const auto found = document.is_object() ? document.find("roleCredentials") : document.end();
  if (found != document.end() && found->is_object()) {
    credentials.access_key_id = TextIn(*found, "accessKeyId");
    credentials.secret_access_key = TextIn(*found, "secretAccessKey");
    credentials.session_token = TextIn(*found, "sessionToken");
    const auto expiration = found->find("expiration");  // milliseconds since 1970
    if (expiration != found->end() && expiration->is_number_unsigned()) {
      const auto seconds = static_cast<std::time_t>(expiration->get<uint64_t>() / 1000);
      credentials.expiry = system_clock::from_time_t(seconds);
    }
  }
  if (credentials.access_key_id.empty() || credentials.secret_access_key.empty()) {
    return RefuseCredentials(fmt::format("{} supplied no credentials", kService));
  }
  if (!credentials.expiry) {
    return RefuseCredentials(
        fmt::format("{} supplied credentials without an expiration in milliseconds", kService));
  }
  return credentials;
}

}  // namespace

Result<std::optional<S3Credentials>> SsoCredentials(const CredentialContext& context) {
  const AwsProfile& profile = context.profile;
  // A session alone is for the tokens of other services.
  if (profile.Get("sso_account_id").empty() && profile.Get("sso_role_name").empty()) {
    return std::nullopt;
  }
  CAIRN_TRY_ASSIGN(const SsoProfile sso, SsoProfileOf(profile));
  const std::string folder = HomeDirectory(context.environment) + "/.aws/sso/cache";
  const std::optional<SsoToken> token = FindToken(sso, folder);
  const std::string advice = fmt::format("run \"aws sso login --profile {}\"", profile.name);
  if (!token) {
    return RefuseCredentials(
        fmt::format("there is no token of {} for the AWS profile \"{}\" in "
                    "{}; {}",
                    kService, profile.name, folder, advice));
  }
  if (token->expiry <= system_clock::now()) {
    return RefuseCredentials(
        fmt::format("the token of {} for the AWS profile \"{}\" has expired; {}", kService,
                    profile.name, advice));
  }
  std::string endpoint = context.environment("AWS_ENDPOINT_URL_SSO");
  if (endpoint.empty()) {
    const bool is_china = sso.region.starts_with("cn-");
    endpoint =
        fmt::format("https://portal.sso.{}.amazonaws.com{}", sso.region, is_china ? ".cn" : "");
  }
  while (endpoint.ends_with('/')) endpoint.pop_back();
  if (!MayAskForCredentials(endpoint)) {
    return RefuseCredentials("AWS_ENDPOINT_URL_SSO is neither https:// nor on this machine");
  }
  const ServiceRequest request{
      .url = fmt::format("{}/federation/credentials?account_id={}&role_name={}", endpoint,
                         EncodeUri(sso.account, false), EncodeUri(sso.role, false)),
      .headers = {"x-amz-sso_bearer_token: " + token->token},
      .body = "",
      .signature = std::nullopt,
      .use_proxy = true};
  const HttpResponse response = AskService(request, context);
  if (response.status == 401) {
    return RefuseCredentials(
        fmt::format("{} does not accept the token for the AWS profile \"{}\" "
                    "any more; {}",
                    kService, profile.name, advice));
  }
  if (response.status != 200) return Fail(ServiceError(response, kService));
  return ParseRoleCredentials(response);
}

}  // namespace cairn::kv::internal
