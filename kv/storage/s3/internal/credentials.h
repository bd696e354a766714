#pragma once
/// Credentials that are obtained when they are needed, and again before they expire.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kv/base/error.h"
#include "kv/base/mutex.h"
#include "kv/base/s3_options.h"

namespace cairn::kv::internal {

/// Obtains credentials. May wait for a network.
using CredentialsSource = std::function<Result<S3Credentials>()>;

/// Credentials that a request was signed with.
struct SigningCredentials {
  S3Credentials credentials;
  uint64_t version = 0;  // differs for credentials that were obtained separately
};
using SharedCredentials = std::shared_ptr<const SigningCredentials>;

/// Threads: all members may run on many threads at once.
class CredentialsCache {
 public:
  explicit CredentialsCache(CredentialsSource source);

  /// Returns valid credentials. Obtains others if they expire within five minutes, but if that
  /// fails, returns them as long as they have not expired. One thread obtains them, and the others
  /// wait for it if they need them.
  Result<SharedCredentials> Get();
  /// Returns what the last Get returned, without waiting for anything but a short lock; null if
  /// there is none or if it has expired.
  SharedCredentials GetCached();
  /// Makes the next Get obtain other credentials, because the server rejected this version.
  void Reject(uint64_t version);

 private:
  /// Returns null if others must be obtained.
  SharedCredentials Usable();

  const CredentialsSource source_;
  Mutex source_mutex_;  // held while source_ runs; locked before mutex_
  Mutex mutex_;
  SharedCredentials current_ CAIRN_GUARDED_BY(mutex_);
  uint64_t last_version_ CAIRN_GUARDED_BY(mutex_) = 0;
  // When to try again to replace credentials that expire soon.
  std::chrono::steady_clock::time_point next_refresh_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::kv::internal
