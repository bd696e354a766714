// When credentials are obtained again.

#include "kv/storage/s3/internal/credentials.h"

#include <algorithm>
#include <string>
#include <utility>

namespace cairn::kv::internal {
namespace {

constexpr std::chrono::minutes kRefreshBefore{5};
constexpr std::chrono::seconds kRefreshInterval{20};  // of credentials that expire soon

bool ExpiresWithin(const S3Credentials& credentials, std::chrono::seconds duration) {
  return credentials.expiry && *credentials.expiry <= std::chrono::system_clock::now() + duration;
}

// They become parts of headers, which end at a line break.
Result<S3Credentials> Checked(S3Credentials credentials) {
  if (credentials.access_key_id.empty() || credentials.secret_access_key.empty()) {
    return Fail(ErrorCode::kFailedPrecondition,
                "the source of S3 credentials supplied an empty access key or secret");
  }
  for (const std::string* text :
       {&credentials.access_key_id, &credentials.secret_access_key, &credentials.session_token}) {
    const auto is_control = [](char c) { return static_cast<uint8_t>(c) < 0x20 || c == 0x7f; };
    if (std::ranges::none_of(*text, is_control)) continue;
    return Fail(ErrorCode::kFailedPrecondition,
                "the source of S3 credentials supplied an access key, a secret or a session token "
                "with a line break or another control character");
  }
  return credentials;
}

}  // namespace

CredentialsCache::CredentialsCache(CredentialsSource source) : source_(std::move(source)) {}

SharedCredentials CredentialsCache::Usable() {
  const MutexLock lock(mutex_);
  if (current_ == nullptr || !ExpiresWithin(*current_, kRefreshBefore)) return current_;
  const bool expired = ExpiresWithin(*current_, std::chrono::seconds(0));
  if (expired || std::chrono::steady_clock::now() >= next_refresh_) return nullptr;
  return current_;
}

Result<SharedCredentials> CredentialsCache::Get() {
  if (SharedCredentials usable = Usable()) return usable;
  const MutexLock source_lock(source_mutex_);
  if (SharedCredentials usable = Usable()) return usable;
  {
    // Some sources supply credentials that expire within five minutes. They are used, but not
    // obtained again for each request. Other threads use them in the meantime.
    const MutexLock lock(mutex_);
    next_refresh_ = std::chrono::steady_clock::now() + kRefreshInterval;
  }
  Result<S3Credentials> obtained = source_();
  if (obtained) obtained = Checked(*std::move(obtained));
  const MutexLock lock(mutex_);
  next_refresh_ = std::chrono::steady_clock::now() + kRefreshInterval;
  if (!obtained) {
    if (current_ != nullptr && !ExpiresWithin(*current_, std::chrono::seconds(0))) {
      return current_;
    }
    return Fail(obtained.error());
  }
  current_ = std::make_shared<const S3Credentials>(*std::move(obtained));
  return current_;
}

void CredentialsCache::Reject(const SharedCredentials& credentials) {
  const MutexLock lock(mutex_);
  if (current_ == credentials) current_ = nullptr;
}

}  // namespace cairn::kv::internal
