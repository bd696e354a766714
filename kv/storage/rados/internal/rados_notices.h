#pragma once
/// Messages that a root or a part has been put, to all processes that wait for one in the
/// namespace.
///
/// They are notifications of RADOS on the object kNoticeObject, which the first process that waits
/// creates. They only save time: a message that is lost costs the timeout of Await.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
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
  /// Waits until such a message about the folder of the prefix has been received since the last
  /// call for this folder, at most for `timeout`. Sleeps if messages cannot be received.
  void Await(std::string_view prefix, std::chrono::milliseconds timeout);

 private:
  static void OnNotified(void* self, uint64_t notify_id, uint64_t watch, uint64_t notifier_id,
                         void* data, size_t length_bytes);
  static void OnWatchFailed(void* self, uint64_t watch, int error);
  /// Returns whether messages are received.
  bool EnsureWatch();

  RadosSession& session_;
  Mutex watch_mutex_;  // held during requests; before mutex_
  uint64_t watch_ CAIRN_GUARDED_BY(watch_mutex_) = 0;
  bool has_watch_ CAIRN_GUARDED_BY(watch_mutex_) = false;

  Mutex mutex_;
  CondVar changed_;
  bool watch_failed_ CAIRN_GUARDED_BY(mutex_) = false;
  uint32_t in_flight_ CAIRN_GUARDED_BY(mutex_) = 0;
  /// The messages that were received, and the count when Await returned last.
  struct Messages {
    uint64_t count = 0;
    uint64_t seen_count = 0;
  };
  std::map<std::string, Messages, std::less<>> messages_ CAIRN_GUARDED_BY(mutex_);  // by folder
};

}  // namespace cairn::kv::internal
