#pragma once
/// Credentials that are obtained when they are needed, and again before they expire.

#include <chrono>
#include <functional>
#include <memory>

#include "kv/base/error.h"
#include "kv/base/mutex.h"
#include "kv/base/s3_options.h"

namespace cairn::kv::internal {

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
