// The order of the sources; environment, profile, and processes.

#include "kv/internal/s3/credential_sources.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "kv/internal/s3/credential_services.h"

namespace cairn::kv::internal {
namespace {

using MaybeCredentials = Result<std::optional<S3Credentials>>;

constexpr size_t kMaxOutputBytes = 1 << 20;

// Both halves of a key are needed; one alone is a mistake that would otherwise be hard to find.
MaybeCredentials KeysOrNothing(S3Credentials credentials, std::string_view source) {
  if (credentials.access_key_id.empty() && credentials.secret_access_key.empty()) {
    return std::nullopt;
  }
  if (credentials.access_key_id.empty() || credentials.secret_access_key.empty()) {
    return Fail(ErrorCode::kFailedPrecondition,
                fmt::format("only one of access key and secret key is in {}", source));
  }
  return credentials;
}

MaybeCredentials EnvironmentCredentials(const CredentialContext& context) {
  if (context.profile_is_explicit) return std::nullopt;
  return KeysOrNothing({.access_key_id = context.environment("AWS_ACCESS_KEY_ID"),
                        .secret_access_key = context.environment("AWS_SECRET_ACCESS_KEY"),
                        .session_token = context.environment("AWS_SESSION_TOKEN"),
                        .expiry = std::nullopt},
                       "the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)");
}

MaybeCredentials ProfileKeys(const CredentialContext& context) {
  return KeysOrNothing({.access_key_id = context.profile.Get("aws_access_key_id"),
                        .secret_access_key = context.profile.Get("aws_secret_access_key"),
                        .session_token = context.profile.Get("aws_session_token"),
                        .expiry = std::nullopt},
                       fmt::format("the AWS profile \"{}\"", context.profile.name));
}

MaybeCredentials ProcessCredentials(const CredentialContext& context) {
  const std::string command = context.profile.Get("credential_process");
  if (command.empty()) return std::nullopt;
  const std::string source =
      fmt::format("the credential_process of the AWS profile \"{}\"", context.profile.name);
  FILE* pipe = ::popen(command.c_str(), "re");
  if (pipe == nullptr) return Fail(SystemError(errno, fmt::format("cannot start {}", source)));
  std::string output;
  char buffer[4096];
  while (const size_t length = std::fread(buffer, 1, sizeof(buffer), pipe)) {
    output.append(buffer, length);
    if (output.size() > kMaxOutputBytes) break;
  }
  const int status = ::pclose(pipe);
  if (status != 0) {
    return Fail(ErrorCode::kFailedPrecondition,
                fmt::format("{} failed with exit status {}; it has written the reason to standard "
                            "error",
                            source, WIFEXITED(status) ? WEXITSTATUS(status) : -1));
  }
  return ParseCredentialsJson(output, source);
}

MaybeCredentials UnsupportedProfile(const CredentialContext& context) {
  for (const char* setting : {"role_arn", "sso_session", "sso_start_url"}) {
    if (context.profile.Get(setting).empty()) continue;
    return Fail(ErrorCode::kFailedPrecondition,
                fmt::format("the AWS profile \"{0}\" uses {1}, which is not supported; add a "
                            "profile with \"credential_process = aws configure export-credentials "
                            "--profile {0} --format process\" and use that",
                            context.profile.name, setting));
  }
  return std::nullopt;
}

}  // namespace

Result<S3Credentials> FindCredentials(const CredentialContext& context) {
  for (const auto& source :
       {&EnvironmentCredentials, &WebIdentityCredentials, &ProfileKeys, &ProcessCredentials,
        &UnsupportedProfile, &ContainerCredentials, &MachineCredentials}) {
    CAIRN_TRY_ASSIGN(std::optional<S3Credentials> credentials, source(context));
    if (credentials) return *std::move(credentials);
  }
  return Fail(ErrorCode::kFailedPrecondition,
              fmt::format("found no credentials for S3: not in the environment "
                          "(AWS_ACCESS_KEY_ID), the AWS profile \"{}\", or from services of a "
                          "container or an EC2 machine; set them, or choose a profile with "
                          "AWS_PROFILE",
                          context.profile.name));
}

}  // namespace cairn::kv::internal
