// The order of the sources; environment, profile, and processes.

#include "kv/storage/s3/internal/credential_sources.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "kv/io/file_descriptor.h"
#include "kv/storage/s3/internal/credential_services.h"

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

MaybeCredentials EnvironmentKeys(const CredentialContext& context) {
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

// Returns what a command of the shell writes to standard output. Not popen, which waits without a
// limit.
Result<std::string> RunCommand(const std::string& command, const std::string& source,
                               std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline = Clock::now() + timeout;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return Fail(SystemError(errno, fmt::format("cannot start {}", source)));
  }
  const FileDescriptor output_end(ends[0]);
  FileDescriptor input_end(ends[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, input_end.get(), STDOUT_FILENO);
  const char* const arguments[] = {"sh", "-c", command.c_str(), nullptr};
  pid_t child = 0;
  const int error = ::posix_spawn(&child, "/bin/sh", &actions, nullptr,
                                  const_cast<char* const*>(arguments), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return Fail(SystemError(error, fmt::format("cannot start {}", source)));
  input_end.Close();
  std::string output;
  bool has_ended = false;
  while (!has_ended && output.size() <= kMaxOutputBytes) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd waits{.fd = output_end.get(), .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || ::poll(&waits, 1, static_cast<int>(left.count())) == 0) break;
    char buffer[4096];
    const ssize_t length = ::read(output_end.get(), buffer, sizeof(buffer));
    if (length > 0) output.append(buffer, static_cast<size_t>(length));
    has_ended = length == 0 || (length < 0 && errno != EINTR);
  }
  if (!has_ended) ::kill(child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!has_ended) {
    return Fail(ErrorCode::kFailedPrecondition,
                fmt::format("{} has not ended after {} ms and {} bytes", source, timeout.count(),
                            output.size()));
  }
  if (status == 0) return output;
  return Fail(ErrorCode::kFailedPrecondition,
              fmt::format("{} failed with exit status {}; it has written the reason to standard "
                          "error",
                          source, WIFEXITED(status) ? WEXITSTATUS(status) : -1));
}

// Returns what needs a service that only other tools ask; "" if there is none.
std::string UnsupportedSource(const CredentialContext& context) {
  for (const char* setting :
       {"role_arn", "web_identity_token_file", "sso_session", "sso_start_url"}) {
    if (context.profile.Get(setting).empty()) continue;
    return fmt::format("{} of the AWS profile \"{}\"", setting, context.profile.name);
  }
  constexpr const char* kVariable = "AWS_WEB_IDENTITY_TOKEN_FILE";
  const bool is_used = !context.profile_is_explicit && !context.environment(kVariable).empty();
  return is_used ? kVariable : "";
}

MaybeCredentials ProfileCredentials(const CredentialContext& context) {
  const std::string unsupported = UnsupportedSource(context);
  if (unsupported.empty()) {
    CAIRN_TRY_ASSIGN(std::optional<S3Credentials> keys, ProfileKeys(context));
    if (keys) return keys;
  }
  const std::string command = context.profile.Get("credential_process");
  if (!command.empty()) {
    const std::string source =
        fmt::format("the credential_process of the AWS profile \"{}\"", context.profile.name);
    CAIRN_TRY_ASSIGN(const std::string output,
                     RunCommand(command, source, context.process_timeout));
    return ParseCredentialsJson(output, source);
  }
  if (unsupported.empty()) return std::nullopt;
  return Fail(ErrorCode::kFailedPrecondition,
              fmt::format("{} is not supported without a program that asks AWS: use a profile with "
                          "\"credential_process = aws configure export-credentials --profile {}\", "
                          "or pass credentials=boto3.Session() in Python",
                          unsupported, context.profile.name));
}

}  // namespace

Result<S3Credentials> FindCredentials(const CredentialContext& context) {
  std::optional<S3Credentials> credentials;
  if (!context.profile_is_explicit) {
    CAIRN_TRY_ASSIGN(credentials, EnvironmentKeys(context));
  }
  if (!credentials) {
    CAIRN_TRY_ASSIGN(credentials, ProfileCredentials(context));
  }
  for (const auto& source : {&ContainerCredentials, &MachineCredentials}) {
    if (credentials) break;
    CAIRN_TRY_ASSIGN(credentials, source(context));
  }
  if (credentials) return *std::move(credentials);
  return Fail(ErrorCode::kFailedPrecondition,
              fmt::format("found no credentials for S3: not in the environment "
                          "(AWS_ACCESS_KEY_ID), the AWS profile \"{}\", or from services of a "
                          "container or an EC2 machine; set them, or choose a profile with "
                          "AWS_PROFILE",
                          context.profile.name));
}

}  // namespace cairn::kv::internal
