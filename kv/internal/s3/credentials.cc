// When credentials are obtained again.

#include "kv/internal/s3/credentials.h"

#include <utility>

namespace cairn::kv::internal {
namespace {

constexpr std::chrono::minutes kRefreshBefore{5};
constexpr std::chrono::seconds kRefreshInterval{20};  // after a failure to replace valid ones

bool ExpiresWithin(const S3Credentials& credentials, std::chrono::seconds duration) {
  return credentials.expiry && *credentials.expiry <= std::chrono::system_clock::now() + duration;
}

}  // namespace

CredentialsCache::CredentialsCache(CredentialsSource source) : source_(std::move(source)) {}

SharedCredentials CredentialsCache::Usable() {
  if (current_ == nullptr || !ExpiresWithin(current_->credentials, kRefreshBefore)) return current_;
  const bool expired = ExpiresWithin(current_->credentials, std::chrono::seconds(0));
  if (expired || std::chrono::steady_clock::now() >= next_refresh_) return nullptr;
  return current_;
}

Result<SharedCredentials> CredentialsCache::Get() {
  {
    const MutexLock lock(mutex_);
    if (SharedCredentials usable = Usable()) return usable;
  }
  const MutexLock source_lock(source_mutex_);
  {
    const MutexLock lock(mutex_);  // another thread may have obtained them
    if (SharedCredentials usable = Usable()) return usable;
  }
  Result<S3Credentials> obtained = source_();
  const MutexLock lock(mutex_);
  if (obtained && (obtained->access_key_id.empty() || obtained->secret_access_key.empty())) {
    obtained = Fail(ErrorCode::kFailedPrecondition,
                    "the source of S3 credentials supplied an empty access key or secret");
  }
  if (!obtained) {
    next_refresh_ = std::chrono::steady_clock::now() + kRefreshInterval;
    if (current_ != nullptr && !ExpiresWithin(current_->credentials, std::chrono::seconds(0))) {
      return current_;
    }
    return Fail(obtained.error());
  }
  // Some sources supply credentials that expire within five minutes. They are used, but not
  // obtained again for each request.
  next_refresh_ = std::chrono::steady_clock::now() + kRefreshInterval;
  current_ = std::make_shared<const SigningCredentials>(
      SigningCredentials{.credentials = *std::move(obtained), .version = ++last_version_});
  return current_;
}

SharedCredentials CredentialsCache::GetCached() {
  const MutexLock lock(mutex_);
  if (current_ != nullptr && ExpiresWithin(current_->credentials, std::chrono::seconds(0))) {
    return nullptr;
  }
  return current_;
}

void CredentialsCache::Reject(uint64_t version) {
  const MutexLock lock(mutex_);
  if (current_ != nullptr && current_->version == version) current_ = nullptr;
}

}  // namespace cairn::kv::internal
