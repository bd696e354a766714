// Requests of STS and their responses.

#include "kv/internal/s3/sts_credentials.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <pugixml.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "kv/internal/s3/credential_request.h"
#include "kv/internal/s3/credential_services.h"
#include "kv/internal/s3/s3_settings.h"

namespace cairn::kv::internal {
namespace {

constexpr std::string_view kService = "AWS STS";

using Parameters = std::map<std::string, std::string>;  // sorted, as signatures require

Result<std::string> StsUrl(const CredentialContext& context) {
  std::string endpoint = context.environment("AWS_ENDPOINT_URL_STS");
  if (endpoint.empty()) endpoint = context.profile.Get("services.sts.endpoint_url");
  if (endpoint.empty()) {
    const bool is_china = context.region.starts_with("cn-");
    endpoint = fmt::format("https://sts.{}.amazonaws.com{}", context.region, is_china ? ".cn" : "");
  }
  while (endpoint.ends_with('/')) endpoint.pop_back();
  if (!MayAskForCredentials(endpoint)) {
    return RefuseCredentials(
        "the endpoint of AWS STS (AWS_ENDPOINT_URL_STS or the profile's) is neither https:// nor "
        "on "
        "this machine");
  }
  return endpoint + "/";
}

std::string Encode(const Parameters& parameters) {
  std::string text;
  for (const auto& [name, value] : parameters) {
    text += fmt::format("{}{}={}", text.empty() ? "" : "&", name, EncodeUri(value, false));
  }
  return text;
}

// The code, such as AccessDenied, is the only part of a response that is certainly not a secret.
Error StsError(const HttpResponse& response, const std::string& role) {
  Error error = ServiceError(response, kService);
  pugi::xml_document document;
  document.load_buffer(response.body.data(), response.body.size());
  const std::string_view code =
      document.first_element_by_path("ErrorResponse/Error/Code").child_value();
  const bool is_code = !code.empty() && code.size() <= 64 && std::ranges::all_of(code, [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '.';
  });
  if (is_code) error.message += fmt::format(" ({})", code);
  error.message += fmt::format(" when asked for the role {}", role);
  return error;
}

// `name` is that of the action, which the elements of the response contain.
Result<S3Credentials> ParseStsResponse(const HttpResponse& response, std::string_view name,
                                       const std::string& role) {
  if (response.status != 200) return Fail(StsError(response, role));
  pugi::xml_document document;
  document.load_buffer(response.body.data(), response.body.size());
  const pugi::xml_node node = document.first_element_by_path(
      fmt::format("{0}Response/{0}Result/Credentials", name).c_str());
  S3Credentials credentials{.access_key_id = node.child_value("AccessKeyId"),
                            .secret_access_key = node.child_value("SecretAccessKey"),
                            .session_token = node.child_value("SessionToken"),
                            .expiry = ParseTime(node.child_value("Expiration"))};
  if (credentials.access_key_id.empty() || credentials.secret_access_key.empty()) {
    return RefuseCredentials(
        fmt::format("{} supplied no credentials for the role {}", kService, role));
  }
  if (!credentials.expiry) {
    return RefuseCredentials(fmt::format(
        "{} supplied credentials for the role {} without an expiration in UTC", kService, role));
  }
  return credentials;
}

std::string SessionName(const std::string& configured) {
  return configured.empty() ? "cairn" : configured;
}

}  // namespace

Result<std::optional<S3Credentials>> WebIdentityCredentials(const CredentialContext& context) {
  const auto get = [&](const char* variable, const char* setting) {
    std::string value = context.profile_is_explicit ? "" : context.environment(variable);
    return value.empty() ? context.profile.Get(setting) : value;
  };
  const std::string path = get("AWS_WEB_IDENTITY_TOKEN_FILE", "web_identity_token_file");
  if (path.empty()) return std::nullopt;
  const std::string role = get("AWS_ROLE_ARN", "role_arn");
  const std::string session = get("AWS_ROLE_SESSION_NAME", "role_session_name");
  if (role.empty()) {
    return RefuseCredentials(
        "there is a web identity token and no role for it; set AWS_ROLE_ARN, or role_arn of the "
        "profile");
  }
  CAIRN_TRY_ASSIGN(const std::string url, StsUrl(context));
  CAIRN_TRY_ASSIGN(std::string token, ReadSecretFile(path, "web identity token"));
  const ServiceRequest request{
      .url = url,
      .method = "POST",
      .headers = {"Accept: application/xml", "Content-Type: application/x-www-form-urlencoded"},
      .body = Encode({{"Action", "AssumeRoleWithWebIdentity"},
                      {"RoleArn", role},
                      {"RoleSessionName", SessionName(session)},
                      {"Version", "2011-06-15"},
                      {"WebIdentityToken", std::move(token)}}),
      .signature = std::nullopt,
      .use_proxy = true};
  return ParseStsResponse(AskService(request, context), "AssumeRoleWithWebIdentity", role);
}

Result<S3Credentials> AssumeRole(const CredentialContext& context, const S3Credentials& source) {
  const std::string role = context.profile.Get("role_arn");
  Parameters parameters = {
      {"Action", "AssumeRole"},
      {"RoleArn", role},
      {"RoleSessionName", SessionName(context.profile.Get("role_session_name"))},
      {"Version", "2011-06-15"}};
  const std::string external_id = context.profile.Get("external_id");
  if (!external_id.empty()) parameters["ExternalId"] = external_id;
  const std::string duration = context.profile.Get("duration_seconds");
  if (!duration.empty()) parameters["DurationSeconds"] = duration;
  // libcurl signs the body of a POST only if it has it in memory, so the parameters, which contain
  // no secret, are in the URL.
  CAIRN_TRY_ASSIGN(const std::string url, StsUrl(context));
  ServiceRequest request{
      .url = url + "?" + Encode(parameters),
      .headers = {"Accept: application/xml"},
      .body = "",
      .signature = HttpSignature{.scope = fmt::format("aws:amz:{}:sts", context.region),
                                 .access_key_id = source.access_key_id,
                                 .secret_access_key = source.secret_access_key},
      .use_proxy = true};
  if (!source.session_token.empty()) {
    request.headers.push_back("x-amz-security-token: " + source.session_token);
  }
  return ParseStsResponse(AskService(request, context), "AssumeRole", role);
}

}  // namespace cairn::kv::internal
