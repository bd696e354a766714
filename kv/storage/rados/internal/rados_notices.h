#pragma once
/// Messages that a root or a part has been put, to all processes that wait for one in the
/// namespace.
///
/// They are notifications of RADOS on the object kNoticeObject, which the first process that waits
/// creates. They only save time: a message that is lost costs the timeout of Await.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kv/base/mutex.h"
#include "kv/storage/rados/internal/rados_session.h"

namespace cairn::kv::internal {

/// ':' makes it a name that no object has.
inline constexpr const char* kNoticeObject = ":changes";

/// Ownership: `session` outlives it. Threads: Announce and Await may run on many threads at once.
class RadosNotices {
 public:
  explicit RadosNotices(RadosSession& session);
  /// Waits for the messages in flight, some seconds if a process that waited has died.
  ~RadosNotices();
  RadosNotices(const RadosNotices&) = delete;
  RadosNotices& operator=(const RadosNotices&) = delete;

  /// Sends a message in the background if `name` belongs to a root or a part.
  void Announce(std::string_view name);
  /// Waits until such a message has been received since the last call with this prefix, at most for
  /// `timeout`. Sleeps if messages cannot be received.
  void Await(std::string_view prefix, std::chrono::milliseconds timeout);

 private:
  static void OnNotified(void* self, uint64_t notify_id, uint64_t watch, uint64_t notifier_id,
                         void* data, size_t length_bytes);
  static void OnWatchFailed(void* self, uint64_t watch, int error);
  /// Returns whether messages are received.
  bool EnsureWatch();
  /// Returns how many messages with the prefix have been received.
  uint64_t CountOf(std::string_view prefix) const CAIRN_REQUIRES(mutex_);
  uint64_t& SeenOf(std::string_view prefix) CAIRN_REQUIRES(mutex_);

  RadosSession& session_;
  Mutex watch_mutex_;  // held during requests; before mutex_
  uint64_t watch_ CAIRN_GUARDED_BY(watch_mutex_) = 0;
  bool has_watch_ CAIRN_GUARDED_BY(watch_mutex_) = false;

  Mutex mutex_;
  CondVar changed_;
  bool watch_failed_ CAIRN_GUARDED_BY(mutex_) = false;
  uint32_t in_flight_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::array<uint64_t, 2> counts_ CAIRN_GUARDED_BY(mutex_) = {};  // per folder
  std::array<uint64_t, 3> seen_ CAIRN_GUARDED_BY(mutex_) = {};    // per folder, and of both
};

}  // namespace cairn::kv::internal
