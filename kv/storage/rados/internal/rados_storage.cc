// The operations on objects as operations on heads and stripes, and the messages about them.

#include "kv/storage/rados/internal/rados_storage.h"

#include <fmt/format.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kv/base/catch_exhaustion.h"
#include "kv/base/digest.h"
#include "kv/base/mutex.h"
#include "kv/io/internal/file.h"
#include "kv/io/internal/io_environment.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/internal/transfer_queues.h"
#include "kv/storage/rados/internal/object_read.h"
#include "kv/storage/rados/internal/object_write.h"
#include "kv/storage/rados/internal/rados_session.h"

namespace cairn::kv::internal {
namespace {

constexpr uint64_t kSmallObjectBytes = 64 << 10;
constexpr uint64_t kMaxPartBytes = 64 << 20;
constexpr uint32_t kQueueDepth = 8;
constexpr uint32_t kSmallRequests = 16;
constexpr uint64_t kMaxGapBytes = 256 << 10;

/// A queue of requests that librados performs. Ownership: `session` outlives it.
class RadosQueue final : public CallbackQueue {
 public:
  RadosQueue(RadosSession& session, uint32_t depth) : CallbackQueue(depth), session_(session) {}
  ~RadosQueue() override { WaitForAll(); }
  const char* name() const override { return "rados"; }

 private:
  void BeginRead(const IoRequest& request, Done done) override {
    StartRead(session_, request.object, request.offset_bytes,
              std::span(request.data, request.length_bytes), std::move(done));
  }
  bool is_usable() const override { return session_.is_usable(); }

  RadosSession& session_;
};

/// Writes one stripe while it collects the next.
std::unique_ptr<ObjectWriter> MakeWriter(RadosSession& session, std::string_view name,
                                         HeadMode mode) {
  const uint64_t stripe_bytes = session.settings().stripe_bytes;
  const auto put_head = [&session, name = std::string(name),
                         mode](std::span<const std::byte> bytes) -> Result<void> {
    if (!session.is_usable()) return Fail(session.ForkedError(name));
    const int result = PutHead(session, name, bytes, mode);
    if (result < 0) return Fail(session.MakeError(result, "write the object", name));
    return {};
  };
  return MakeUploadWriter(
      std::make_unique<RadosUpload>(session, std::string(name), stripe_bytes, mode),
      std::make_unique<RadosQueue>(session, 1), stripe_bytes, put_head);
}

using std::chrono::steady_clock;

/// The object of the notices. ':' makes it a name that no object of a store has.
constexpr const char* kNoticeObject = ":changes";
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

/// Messages that a root or a part has been put, to all processes that wait for one in the
/// namespace: notifications of RADOS on kNoticeObject, which the first process that waits creates.
/// They only save time: a message that is lost costs the timeout of Await. Ownership: `session`
/// outlives it. Threads: Announce and Await may run on many threads at once.
class RadosNotices {
 public:
  explicit RadosNotices(RadosSession& session) : session_(session) {}
  /// Waits for the messages in flight, some seconds if a process that waited has died.
  ~RadosNotices() {
    {
      const MutexLock lock(watch_mutex_);
      if (has_watch_) (void)session_.api().unwatch2(session_.heads(), watch_);
      // After this, no callback runs.
      if (has_watch_) (void)session_.api().watch_flush(session_.cluster());
    }
    const MutexLock lock(mutex_);
    while (in_flight_ > 0) changed_.Wait(mutex_);
  }
  RadosNotices(const RadosNotices&) = delete;
  RadosNotices& operator=(const RadosNotices&) = delete;

  /// Sends a message in the background if `name` belongs to a root or a part.
  void Announce(std::string_view name) {
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

  /// Waits until such a message about the folder of the prefix has been received since the last
  /// call for this folder, at most for `timeout`. Sleeps if messages cannot be received.
  void Await(std::string_view prefix, std::chrono::milliseconds timeout) {
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

 private:
  /// What librados returns for a message.
  struct Reply {
    char* data = nullptr;
    size_t length_bytes = 0;
  };
  /// The messages that were received, and the count when Await returned last.
  struct Messages {
    uint64_t count = 0;
    uint64_t seen_count = 0;
  };

  static void OnNotified(void* self, uint64_t notify_id, uint64_t watch, uint64_t, void* data,
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

  static void OnWatchFailed(void* self, uint64_t, int) {
    auto& notices = *static_cast<RadosNotices*>(self);
    const MutexLock lock(notices.mutex_);
    notices.watch_failed_ = true;
    notices.changed_.NotifyAll();
  }

  /// Returns whether messages are received.
  bool EnsureWatch() {
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
    // The object never has bytes. Readers without the capability to create it can watch one.
    (void)PutHead(session_, kNoticeObject, std::span<const std::byte>(), HeadMode::kCreate);
    has_watch_ = api.watch3(session_.heads(), kNoticeObject, &watch_, &RadosNotices::OnNotified,
                            &RadosNotices::OnWatchFailed, kWatchTimeoutSeconds, this) >= 0;
    return has_watch_;
  }

  RadosSession& session_;
  Mutex watch_mutex_;  // held during requests; before mutex_
  uint64_t watch_ CAIRN_GUARDED_BY(watch_mutex_) = 0;
  bool has_watch_ CAIRN_GUARDED_BY(watch_mutex_) = false;

  Mutex mutex_;
  CondVar changed_;
  bool watch_failed_ CAIRN_GUARDED_BY(mutex_) = false;
  uint32_t in_flight_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Messages, std::less<>> messages_ CAIRN_GUARDED_BY(mutex_);  // by folder
};

/// The state of one process.
struct Connection {
  explicit Connection(std::unique_ptr<RadosSession> opened)
      : session(std::move(opened)), notices(*session) {}
  const std::unique_ptr<RadosSession> session;
  RadosNotices notices;
};

class RadosStorage final : public Storage {
 public:
  explicit RadosStorage(RadosSettings settings) : settings_(std::move(settings)) {}
  ~RadosStorage() override {
    // In a child, the threads of the parent's connection do not exist.
    Connection* const connection = connection_;
    if (connection != nullptr && connection->session->is_usable()) delete connection;
  }
  RadosStorage(const RadosStorage&) = delete;
  RadosStorage& operator=(const RadosStorage&) = delete;

  const std::string& address() const override { return settings_.address; }
  /// Pools of different clusters are different, even if they have the same name.
  std::string identity() const override {
    const std::string_view conf =
        settings_.conf.empty() ? EnvironmentVariable("CEPH_CONF") : settings_.conf;
    // As a digest, because CEPH_ARGS may contain a key.
    return fmt::format("{} of {} {:016x}", settings_.address, conf,
                       Checksum64(AsBytes(EnvironmentVariable("CEPH_ARGS"))));
  }

  TransferSizes transfer_sizes() const override {
    return {.request_bytes = settings_.stripe_bytes,
            .queue_depth = kQueueDepth,
            .small_requests = kSmallRequests,
            .max_gap_bytes = kMaxGapBytes};
  }

  Result<void> Put(std::string_view name, std::span<const std::byte> bytes) override {
    CAIRN_CHECK(IsObjectName(name));
    CAIRN_TRY_ASSIGN(Connection* const own, connection());
    RadosSession& session = *own->session;
    // An object that another process has written is not known here, and its stripes become
    // leftovers.
    const std::optional<StripeLayout> replaced = session.FindLayout(name);
    CAIRN_TRY(PutObject(session, name, bytes, HeadMode::kReplace));
    if (replaced) (void)RemoveStripes(session, name, *replaced, replaced->stripe_count());
    own->notices.Announce(name);
    return {};
  }

  Result<void> PutIfAbsent(std::string_view name, std::span<const std::byte> bytes) override {
    CAIRN_CHECK(IsObjectName(name));
    CAIRN_TRY_ASSIGN(Connection* const own, connection());
    CAIRN_TRY(PutObject(*own->session, name, bytes, HeadMode::kCreate));
    own->notices.Announce(name);
    return {};
  }

  Result<std::unique_ptr<ObjectWriter>> Create(std::string_view name) override {
    CAIRN_CHECK(IsObjectName(name));
    CAIRN_TRY_ASSIGN(Connection* const own, connection());
    return MakeWriter(*own->session, name, HeadMode::kCreate);
  }

  Result<void> ReadRange(std::string_view name, uint64_t offset_bytes,
                         std::span<std::byte> target) override {
    CAIRN_CHECK(IsObjectName(name));
    CAIRN_TRY_ASSIGN(Connection* const own, connection());
    return ReadRangeOf(*own->session, name, offset_bytes, target);
  }

  Result<std::vector<std::byte>> Read(std::string_view name, uint64_t limit_bytes) override {
    CAIRN_CHECK(IsObjectName(name));
    CAIRN_TRY_ASSIGN(Connection* const own, connection());
    std::vector<std::byte> bytes(kSmallObjectBytes);
    CAIRN_TRY_ASSIGN(const ObjectHead head, ReadHead(*own->session, name, bytes));
    if (head.size_bytes > limit_bytes) {
      return Fail(
          LongerThanLimit(ObjectPath(settings_.address, name), head.size_bytes, limit_bytes));
    }
    bytes.resize(head.size_bytes);
    if (!head.layout && head.read_bytes == head.size_bytes) return bytes;
    CAIRN_TRY(ReadRangeOf(*own->session, name, 0, bytes));
    return bytes;
  }

  Result<uint64_t> Size(std::string_view name) override {
    CAIRN_CHECK(IsObjectName(name));
    CAIRN_TRY_ASSIGN(Connection* const own, connection());
    CAIRN_TRY_ASSIGN(const ObjectHead head, ReadHead(*own->session, name, {}));
    return head.size_bytes;
  }

  Result<std::vector<std::string>> List(std::string_view prefix) override {
    CAIRN_CHECK(IsObjectPrefix(prefix));
    CAIRN_TRY_ASSIGN(Connection* const own, connection());
    RadosSession& session = *own->session;
    std::vector<std::string> names;
    const int result = ForEachRadosObject(session, session.heads(), [&](std::string_view object) {
      if (object.starts_with(prefix) && IsObjectName(object)) names.emplace_back(object);
    });
    if (result < 0) return Fail(session.MakeError(result, "list objects", prefix));
    return names;
  }

  Result<void> Remove(std::string_view name) override {
    CAIRN_CHECK(IsObjectName(name));
    CAIRN_TRY_ASSIGN(Connection* const own, connection());
    RadosSession& session = *own->session;
    const Result<ObjectHead> head = ReadHead(session, name, {});
    if (!head && head.error().code == ErrorCode::kNotFound) return {};
    CAIRN_TRY(head);
    const int result = RemoveHead(session, name);
    session.ForgetLayout(name);
    if (result < 0 && result != -ENOENT) {
      return Fail(session.MakeError(result, "remove the object", name));
    }
    // The object is gone. RemoveLeftovers removes the stripes that remain after an error.
    if (head->layout) {
      (void)RemoveStripes(session, name, *head->layout, head->layout->stripe_count());
    }
    return {};
  }

  Result<void> RemoveLeftovers(uint32_t end_epoch) override {
    CAIRN_TRY_ASSIGN(Connection* const own, connection());
    return RemoveLeftoverStripes(*own->session, end_epoch, kMinLeftoverAge);
  }

  Result<std::unique_ptr<IoQueue>> MakeQueue(uint32_t depth) override {
    CAIRN_TRY_ASSIGN(Connection* const own, connection());
    return std::make_unique<RadosQueue>(*own->session, depth);
  }

  Result<std::unique_ptr<Upload>> BeginUpload(std::string_view name, uint64_t part_bytes) override {
    CAIRN_CHECK(IsObjectName(name));
    if (part_bytes > kMaxPartBytes) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("blocks of {} bytes are longer than the {} bytes that "
                              "an object of RADOS should have",
                              part_bytes, kMaxPartBytes),
                  ObjectPath(settings_.address, name));
    }
    CAIRN_TRY_ASSIGN(Connection* const own, connection());
    return std::make_unique<RadosUpload>(*own->session, std::string(name), part_bytes);
  }

  void AwaitChange(std::string_view prefix, std::chrono::milliseconds timeout) override {
    const auto own = connection();
    if (!own) return std::this_thread::sleep_for(timeout);
    (*own)->notices.Await(prefix, timeout);
  }

 private:
  Result<Connection*> connection() {
    Connection* found = connection_.load(std::memory_order_acquire);
    if (found != nullptr && found->session->is_usable()) return found;
    // The parent's connection is not touched: its locks are in an unknown state.
    CAIRN_TRY_ASSIGN(auto session, RadosSession::Open(settings_));
    auto own = std::make_unique<Connection>(std::move(session));
    if (connection_.compare_exchange_strong(found, own.get())) return own.release();
    return found;  // another thread's
  }

  Result<void> PutObject(RadosSession& session, std::string_view name,
                         std::span<const std::byte> bytes, HeadMode mode) {
    if (bytes.size() > settings_.stripe_bytes) {
      const auto writer = MakeWriter(session, name, mode);
      CAIRN_TRY(writer->Append(bytes));
      return writer->Finish();
    }
    int result = PutHead(session, name, bytes, mode);
    if (mode == HeadMode::kCreate && IsUnknownOutcome(result) && ReadHead(session, name, {})) {
      result = -EEXIST;
    }
    if (result == -EEXIST) {
      return Fail(ErrorCode::kConflict, "the object exists", session.FileOf(name));
    }
    if (result < 0) return Fail(session.MakeError(result, "put the object", name));
    session.ForgetLayout(name);
    return {};
  }

  const RadosSettings settings_;
  std::atomic<Connection*> connection_ = nullptr;  // owned; the parent's in a forked child
};

}  // namespace

Result<std::shared_ptr<Storage>> OpenRadosStorage(const std::string& address) {
  CAIRN_TRY_ASSIGN(RadosSettings settings, ParseRadosAddress(address));
  return std::make_shared<RadosStorage>(std::move(settings));
}

}  // namespace cairn::kv::internal
