#pragma once
/// Services that supply credentials over HTTP, of containers and of machines, and their documents.

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "kv/base/error.h"
#include "kv/base/s3_options.h"
#include "kv/storage/s3/internal/aws_profile.h"
#include "kv/storage/s3/internal/environment.h"

namespace cairn::kv::internal {

struct CredentialContext {
  AwsProfile profile;
  bool profile_is_explicit = false;  // the caller or the address names it
  std::string ca_bundle;
  Environment environment;
  std::chrono::milliseconds process_timeout{60'000};  // timeout of credential_process
};

/// Parses a document with AccessKeyId, SecretAccessKey, Token or SessionToken, and Expiration.
/// `source` names it in errors, which contain nothing of the document. kFailedPrecondition: it is
/// not such a document.
Result<S3Credentials> ParseCredentialsJson(std::string_view text, std::string_view source);

/// Parses "2026-11-22T20:46:26Z", with or without a fraction and "+00:00". Nothing if it is not a
/// time. A time before 1970 is 1970, and a time that the clock cannot represent, after 2262, is the
/// last one that it can.
std::optional<std::chrono::system_clock::time_point> ParseTime(const std::string& text);

/// Returns whether credentials may be requested from the URL, as AWS SDKs do: from any host over
/// TLS, otherwise only from the machine itself and the agents of ECS and EKS.
bool MayAskForCredentials(const std::string& url);

/// Each returns nothing if the context does not configure it. A request is repeated, after 50 to
/// 1600 ms, if the service fails or answers that there are too many requests. Errors contain
/// nothing of a response but its status. kFailedPrecondition: the service refuses. kUnavailable: it
/// does not answer.
Result<std::optional<S3Credentials>> ContainerCredentials(const CredentialContext& context);
/// The metadata service of EC2, version 2. Returns nothing if no service answers.
Result<std::optional<S3Credentials>> MachineCredentials(const CredentialContext& context);

}  // namespace cairn::kv::internal
