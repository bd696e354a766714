#pragma once
/// Credentials that are obtained when they are needed, and again before they expire; where they are
/// found, and in which order:
///
///   1. AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, unless the caller or the
///      address names a profile;
///   2. the keys of the profile; its credential_process;
///   3. AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI (ECS, EKS);
///   4. the metadata service of the machine (EC2, version 2), unless AWS_EC2_METADATA_DISABLED is
///      "true".
///
/// The first source that is configured is used; if it fails, the others are not tried, because
/// credentials of another identity would be a surprise. For the same reason, a profile or an
/// environment with a role, SSO or a web identity is refused if the profile has no
/// credential_process, through which these are used.
///
/// A request to a service is repeated, after 50 to 1600 ms, if the service fails or answers that
/// there are too many requests. Errors contain nothing of a response but its status.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kv/base/error.h"
#include "kv/base/mutex.h"
#include "kv/base/s3_options.h"
#include "kv/storage/s3/internal/s3_settings.h"

namespace cairn::kv::internal {

struct CredentialContext {
  AwsProfile profile;
  bool profile_is_explicit = false;  // the caller or the address names it
  std::string ca_bundle;
  Environment environment;
  std::chrono::milliseconds process_timeout{60'000};  // timeout of credential_process
};

/// Obtains credentials from the first source that is configured. kFailedPrecondition: there is
/// none, it is not supported, it refuses, or it has no credentials. kUnavailable: it does not
/// answer.
Result<S3Credentials> FindCredentials(const CredentialContext& context);

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

/// Obtains credentials. May wait for a network.
using CredentialsSource = std::function<Result<S3Credentials>()>;

using SharedCredentials = std::shared_ptr<const S3Credentials>;

/// Threads: all members may run on many threads at once.
class CredentialsCache {
 public:
  explicit CredentialsCache(CredentialsSource source);

  /// Returns valid credentials. Obtains others if they expire within five minutes, but if that
  /// fails, returns them as long as they have not expired. One thread obtains them, and the others
  /// wait for it only if these have expired.
  Result<SharedCredentials> Get();
  /// Makes the next Get obtain other credentials, because the server rejected these.
  void Reject(const SharedCredentials& credentials);

 private:
  /// Returns null if others must be obtained.
  SharedCredentials Usable();

  const CredentialsSource source_;
  Mutex source_mutex_;  // held while source_ runs; locked before mutex_
  Mutex mutex_;
  SharedCredentials current_ CAIRN_GUARDED_BY(mutex_);
  // When to try again to replace credentials that expire soon.
  std::chrono::steady_clock::time_point next_refresh_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::kv::internal
