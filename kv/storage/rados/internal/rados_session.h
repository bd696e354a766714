#pragma once
/// The address of a rados: store, the connection of one storage to its cluster, and the access to
/// its pools.
///
/// Every request ends after the timeout of the settings at the latest: librados then gives up with
/// ETIMEDOUT. It repeats requests itself while it waits, so that the death of an OSD is a delay.

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kv/base/error.h"
#include "kv/base/mutex.h"
#include "kv/storage/rados/internal/rados_api.h"
#include "kv/storage/rados/internal/stripe_layout.h"

namespace cairn::kv::internal {

/// Where a rados: store is, and how it is reached.
struct RadosSettings {
  std::string address;  // "rados:POOL/NAMESPACE"
  std::string pool;
  std::string name_space;
  std::string conf;       // absolute path of the configuration; if empty, the usual ones of Ceph
  std::string id;         // user without "client."; if empty, from CEPH_ARGS or "admin"
  std::string data_pool;  // pool of stripes; if empty, `pool`
  uint64_t stripe_bytes = 16 << 20;
  /// Timeout of connections, and of requests unless the configuration has rados_osd_op_timeout.
  std::chrono::seconds timeout{};
};

/// Parses "rados:POOL/NAMESPACE?conf=FILE&id=USER&data_pool=POOL&stripe=BYTES"; the timeout comes
/// from CAIRN_RADOS_TIMEOUT (seconds). kInvalidArgument: it is not such an address.
Result<RadosSettings> ParseRadosAddress(std::string_view address);

/// Threads: all members may run on many threads at once.
class RadosSession {
 public:
  /// Connects. kFailedPrecondition: the library, the configuration or a pool is missing.
  /// kUnavailable: no monitor answered, or the user was refused.
  static Result<std::unique_ptr<RadosSession>> Open(const RadosSettings& settings);
  ~RadosSession();
  RadosSession(const RadosSession&) = delete;
  RadosSession& operator=(const RadosSession&) = delete;

  /// Returns whether this process opened the session. A forked child has none of its threads, and
  /// must not even destroy it.
  bool is_usable() const;

  const RadosApi& api() const { return api_; }
  const RadosSettings& settings() const { return settings_; }
  RadosClusterHandle cluster() const { return cluster_; }
  RadosIoContext heads() const { return heads_; }
  /// Returns the access to new stripes.
  RadosIoContext stripes() const { return data_ == nullptr ? heads_ : data_; }
  bool has_data_pool() const { return data_ != nullptr; }
  int64_t stripe_pool_id() const { return api_.ioctx_get_id(stripes()); }
  /// Returns the access to the pool of existing stripes, without waiting.
  Result<RadosIoContext> Pool(int64_t pool_id);

  /// Begins an operation, and calls `done` once with its result, 0 or more or a negative number of
  /// errno: on any thread, or before this returns if `begin` fails. `begin` gets the completion to
  /// begin it with.
  void StartOperation(const std::function<int(RadosCompletion)>& begin,
                      std::move_only_function<void(int)> done) const;

  /// Returns the error for an object that this process continues to write after a fork.
  Error ForkedError(std::string_view name) const;
  /// Returns what Error::file contains for an object.
  std::string FileOf(std::string_view name) const;
  /// Returns the error of a request: "cannot <operation>: ...". `result` is negative.
  Error MakeError(int result, std::string_view operation, std::string_view name) const;

  // Layouts of objects with stripes, which requests have seen. One that is too old names stripes
  // that do not exist.
  std::optional<StripeLayout> FindLayout(std::string_view name);
  void RememberLayout(std::string_view name, const StripeLayout& layout);
  void ForgetLayout(std::string_view name);

 private:
  RadosSession(RadosSettings settings, const RadosApi& api);
  Result<void> Connect();
  Result<RadosIoContext> OpenPool(const std::string& pool);

  const RadosSettings settings_;
  const pid_t pid_;
  const RadosApi api_;
  RadosClusterHandle cluster_ = nullptr;
  RadosIoContext heads_ = nullptr;
  RadosIoContext data_ = nullptr;  // null if stripes are in the pool of the heads

  Mutex mutex_;
  std::map<int64_t, RadosIoContext> other_pools_ CAIRN_GUARDED_BY(mutex_);
  std::map<std::string, StripeLayout, std::less<>> layouts_ CAIRN_GUARDED_BY(mutex_);
};

/// Returns whether it is unknown if a failed request was performed, or will be.
bool IsUnknownOutcome(int result);

}  // namespace cairn::kv::internal
