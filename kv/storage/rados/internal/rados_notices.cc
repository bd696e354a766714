// Watches and notifications.

#include "kv/storage/rados/internal/rados_notices.h"

#include <cerrno>
#include <memory>
#include <thread>
#include <utility>

#include "kv/base/catch_exhaustion.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/rados/internal/object_write.h"

namespace cairn::kv::internal {
namespace {

using std::chrono::steady_clock;

// The cluster ends a watch whose process is silent for this time.
constexpr uint32_t kWatchTimeoutSeconds = 30;
// How long a message waits for a process that does not confirm it.
constexpr uint64_t kNotifyTimeoutMs = 2000;
constexpr uint32_t kMaxInFlight = 64;

// Returns "roots/" for "roots/1"; "" for names and prefixes of all other folders.
std::string_view FolderOf(std::string_view name) {
  const std::string_view folder = name.substr(0, name.find('/') + 1);
  return folder == kRootFolder || folder == kPendingFolder ? folder : "";
}

/// What librados returns for a message.
struct Reply {
  char* data = nullptr;
  size_t length_bytes = 0;
};

}  // namespace

RadosNotices::RadosNotices(RadosSession& session) : session_(session) {}

RadosNotices::~RadosNotices() {
  {
    const MutexLock lock(watch_mutex_);
    if (has_watch_) (void)session_.api().unwatch2(session_.heads(), watch_);
    // After this, no callback runs.
    if (has_watch_) (void)session_.api().watch_flush(session_.cluster());
  }
  const MutexLock lock(mutex_);
  while (in_flight_ > 0) changed_.Wait(mutex_);
}

void RadosNotices::Announce(std::string_view name) {
  const std::string_view folder = FolderOf(name);
  if (folder.empty()) return;
  {
    const MutexLock lock(mutex_);
    if (in_flight_ >= kMaxInFlight) return;
    ++in_flight_;
  }
  const auto end = [this] {
    const MutexLock lock(mutex_);
    --in_flight_;
    changed_.NotifyAll();
  };
  const RadosApi& api = session_.api();
  const auto begun = CatchExhaustion("a message", [&]() -> Result<void> {
    auto reply = std::make_unique<Reply>();
    Reply& bytes = *reply;
    session_.StartOperation(
        [&](RadosCompletion completion) {
          return api.aio_notify(session_.heads(), kNoticeObject, completion, folder.data(),
                                static_cast<int>(folder.size()), kNotifyTimeoutMs, &bytes.data,
                                &bytes.length_bytes);
        },
        [end, &api, reply = std::move(reply)](int) {
          if (reply->data != nullptr) api.buffer_free(reply->data);
          end();
        });
    return {};
  });
  if (!begun) end();
}

void RadosNotices::OnNotified(void* self, uint64_t notify_id, uint64_t watch, uint64_t, void* data,
                              size_t length_bytes) {
  auto& notices = *static_cast<RadosNotices*>(self);
  RadosSession& session = notices.session_;
  (void)session.api().notify_ack(session.heads(), kNoticeObject, notify_id, watch, nullptr, 0);
  const std::string_view folder = FolderOf({static_cast<const char*>(data), length_bytes});
  if (folder.empty()) return;  // sent by a newer version
  const MutexLock lock(notices.mutex_);
  ++notices.messages_[std::string(folder)].count;
  ++notices.messages_[""].count;  // of any folder
  notices.changed_.NotifyAll();
}

void RadosNotices::OnWatchFailed(void* self, uint64_t, int) {
  auto& notices = *static_cast<RadosNotices*>(self);
  const MutexLock lock(notices.mutex_);
  notices.watch_failed_ = true;
  notices.changed_.NotifyAll();
}

bool RadosNotices::EnsureWatch() {
  const RadosApi& api = session_.api();
  const MutexLock watch_lock(watch_mutex_);
  bool has_failed = false;
  {
    const MutexLock lock(mutex_);
    has_failed = watch_failed_;
    watch_failed_ = false;
  }
  if (has_watch_ && !has_failed) return true;
  if (has_watch_) (void)api.unwatch2(session_.heads(), watch_);
  has_watch_ = false;
  // The object never has bytes. Readers without the capability to create it can watch one.
  (void)PutHead(session_, kNoticeObject, std::span<const std::byte>(), HeadMode::kCreate);
  has_watch_ = api.watch3(session_.heads(), kNoticeObject, &watch_, &RadosNotices::OnNotified,
                          &RadosNotices::OnWatchFailed, kWatchTimeoutSeconds, this) >= 0;
  return has_watch_;
}

void RadosNotices::Await(std::string_view prefix, std::chrono::milliseconds timeout) {
  const auto deadline = steady_clock::now() + timeout;
  if (timeout.count() <= 0) return;
  if (!EnsureWatch()) return std::this_thread::sleep_until(deadline);
  const MutexLock lock(mutex_);
  Messages& messages = messages_[std::string(FolderOf(prefix))];
  while (messages.count == messages.seen_count && !watch_failed_) {
    if (!changed_.WaitUntil(mutex_, deadline)) break;
  }
  messages.seen_count = messages.count;
}

}  // namespace cairn::kv::internal
