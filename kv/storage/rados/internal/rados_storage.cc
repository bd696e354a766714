// The operations on objects as operations on heads and stripes.

#include "kv/storage/rados/internal/rados_storage.h"

#include <fmt/format.h>

#include <atomic>
#include <cerrno>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kv/base/digest.h"
#include "kv/io/internal/file.h"
#include "kv/io/internal/io_environment.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/internal/transfer_queues.h"
#include "kv/storage/internal/upload_writer.h"
#include "kv/storage/rados/internal/object_read.h"
#include "kv/storage/rados/internal/object_write.h"
#include "kv/storage/rados/internal/rados_leftovers.h"
#include "kv/storage/rados/internal/rados_notices.h"
#include "kv/storage/rados/internal/rados_session.h"
#include "kv/storage/rados/internal/rados_settings.h"

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
std::unique_ptr<UploadWriter> MakeWriter(RadosSession& session, std::string_view name,
                                         HeadMode mode) {
  const uint64_t stripe_bytes = session.settings().stripe_bytes;
  const auto put_head = [&session, name = std::string(name),
                         mode](std::span<const std::byte> bytes) -> Result<void> {
    if (!session.is_usable()) return Fail(session.ForkedError(name));
    const int result = PutHead(session, name, bytes, mode);
    if (result < 0) return Fail(session.MakeError(result, "write the object", name));
    return {};
  };
  return std::make_unique<UploadWriter>(
      std::make_unique<RadosUpload>(session, std::string(name), stripe_bytes, mode),
      std::make_unique<RadosQueue>(session, 1), stripe_bytes, put_head);
}

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
      return Fail(ErrorCode::kDataLoss,
                  fmt::format("the object has {} bytes, more than the limit of {}", head.size_bytes,
                              limit_bytes),
                  ObjectPath(settings_.address, name));
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
