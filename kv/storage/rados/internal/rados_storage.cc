// The operations on objects as operations on heads and stripes.

#include "kv/storage/rados/internal/rados_storage.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "kv/base/digest.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/rados/internal/object_read.h"
#include "kv/storage/rados/internal/rados_leftovers.h"
#include "kv/storage/rados/internal/rados_notices.h"
#include "kv/storage/rados/internal/rados_queue.h"
#include "kv/storage/rados/internal/rados_upload.h"
#include "kv/storage/rados/internal/rados_writer.h"

namespace cairn::kv::internal {
namespace {

constexpr uint64_t kSmallObjectBytes = 64 << 10;
constexpr uint64_t kMaxPartBytes = 64 << 20;
constexpr uint32_t kQueueDepth = 8;
constexpr uint32_t kSmallRequests = 16;
constexpr uint64_t kMaxGapBytes = 256 << 10;

}  // namespace

struct RadosStorage::Connection {
  explicit Connection(std::unique_ptr<RadosSession> opened)
      : session(std::move(opened)), notices(*session) {}
  const std::unique_ptr<RadosSession> session;
  RadosNotices notices;
};

RadosStorage::RadosStorage(RadosSettings settings) : settings_(std::move(settings)) {}

RadosStorage::~RadosStorage() {
  // In a child, the threads of the parent's connection do not exist.
  Connection* const connection = connection_.load();
  if (connection != nullptr && connection->session->is_usable()) delete connection;
}

Result<RadosStorage::Connection*> RadosStorage::connection() {
  Connection* found = connection_.load(std::memory_order_acquire);
  if (found != nullptr && found->session->is_usable()) return found;
  // The parent's connection is not touched: its locks are in an unknown state.
  CAIRN_TRY_ASSIGN(auto session, RadosSession::Open(settings_));
  auto own = std::make_unique<Connection>(std::move(session));
  if (connection_.compare_exchange_strong(found, own.get())) return own.release();
  return found;  // another thread's
}

Result<void> RadosStorage::Put(std::string_view name, std::span<const std::byte> bytes) {
  CAIRN_CHECK(IsObjectName(name));
  CAIRN_TRY_ASSIGN(Connection* const own, connection());
  RadosSession& session = *own->session;
  // An object that another process has written is not known here, and its stripes become leftovers.
  const std::optional<StripeLayout> replaced = session.FindLayout(name);
  CAIRN_TRY(PutObject(*own, name, bytes, HeadMode::kReplace));
  if (replaced) (void)RemoveStripes(session, name, *replaced, replaced->stripe_count());
  own->notices.Announce(name);
  return {};
}

Result<void> RadosStorage::PutIfAbsent(std::string_view name, std::span<const std::byte> bytes) {
  CAIRN_CHECK(IsObjectName(name));
  CAIRN_TRY_ASSIGN(Connection* const own, connection());
  CAIRN_TRY(PutObject(*own, name, bytes, HeadMode::kCreate));
  own->notices.Announce(name);
  return {};
}

Result<void> RadosStorage::PutObject(Connection& connection, std::string_view name,
                                     std::span<const std::byte> bytes, HeadMode mode) {
  RadosSession& session = *connection.session;
  if (bytes.size() > settings_.stripe_bytes) {
    RadosWriter writer(session, std::string(name), mode);
    CAIRN_TRY(writer.Append(bytes));
    return writer.Finish();
  }
  int result = PutHead(session, name, bytes, mode);
  if (mode == HeadMode::kCreate && IsUnknownOutcome(result) && ReadHead(session, name, {})) {
    result = -EEXIST;
  }
  if (result == -EEXIST) {
    return Fail(Error{.code = ErrorCode::kConflict,
                      .message = "the object exists",
                      .file = session.FileOf(name)});
  }
  if (result < 0) return Fail(session.MakeError(result, "put the object", name));
  session.ForgetLayout(name);
  return {};
}

Result<std::unique_ptr<ObjectWriter>> RadosStorage::Create(std::string_view name) {
  CAIRN_CHECK(IsObjectName(name));
  CAIRN_TRY_ASSIGN(Connection* const own, connection());
  return std::make_unique<RadosWriter>(*own->session, std::string(name), HeadMode::kCreate);
}

Result<void> RadosStorage::ReadRange(std::string_view name, uint64_t offset_bytes,
                                     std::span<std::byte> target) {
  CAIRN_CHECK(IsObjectName(name));
  CAIRN_TRY_ASSIGN(Connection* const own, connection());
  return ReadRangeOf(*own->session, name, offset_bytes, target);
}

Result<std::vector<std::byte>> RadosStorage::Read(std::string_view name, uint64_t limit_bytes) {
  CAIRN_CHECK(IsObjectName(name));
  CAIRN_TRY_ASSIGN(Connection* const own, connection());
  std::vector<std::byte> bytes(kSmallObjectBytes);
  CAIRN_TRY_ASSIGN(const ObjectHead head, ReadHead(*own->session, name, bytes));
  if (head.size_bytes > limit_bytes) {
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = fmt::format("the object has {} bytes, more than the limit of {}",
                                             head.size_bytes, limit_bytes),
                      .file = ObjectPath(settings_.address, name)});
  }
  bytes.resize(head.size_bytes);
  if (!head.layout && head.read_bytes == head.size_bytes) return bytes;
  CAIRN_TRY(ReadRangeOf(*own->session, name, 0, bytes));
  return bytes;
}

Result<uint64_t> RadosStorage::Size(std::string_view name) {
  CAIRN_CHECK(IsObjectName(name));
  CAIRN_TRY_ASSIGN(Connection* const own, connection());
  CAIRN_TRY_ASSIGN(const ObjectHead head, ReadHead(*own->session, name, {}));
  return head.size_bytes;
}

Result<std::vector<std::string>> RadosStorage::List(std::string_view prefix) {
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

Result<void> RadosStorage::Remove(std::string_view name) {
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
  if (head->layout) (void)RemoveStripes(session, name, *head->layout, head->layout->stripe_count());
  return {};
}

Result<void> RadosStorage::RemoveLeftovers(uint32_t end_epoch) {
  return RemoveLeftovers(end_epoch, kMinLeftoverAge);
}

Result<void> RadosStorage::RemoveLeftovers(uint32_t end_epoch, std::chrono::seconds min_age) {
  CAIRN_TRY_ASSIGN(Connection* const own, connection());
  return RemoveLeftoverStripes(*own->session, end_epoch, min_age);
}

TransferSizes RadosStorage::transfer_sizes() const {
  return {.request_bytes = settings_.stripe_bytes,
          .queue_depth = kQueueDepth,
          .small_requests = kSmallRequests,
          .max_gap_bytes = kMaxGapBytes};
}

Result<std::unique_ptr<IoQueue>> RadosStorage::MakeQueue(uint32_t depth) {
  CAIRN_TRY_ASSIGN(Connection* const own, connection());
  return std::make_unique<RadosQueue>(*own->session, depth);
}

Result<std::unique_ptr<Upload>> RadosStorage::BeginUpload(std::string_view name,
                                                          uint64_t part_bytes) {
  CAIRN_CHECK(IsObjectName(name));
  if (part_bytes > kMaxPartBytes) {
    return Fail(Error{.code = ErrorCode::kInvalidArgument,
                      .message = fmt::format("blocks of {} bytes are longer than the {} bytes that "
                                             "an object of RADOS should have",
                                             part_bytes, kMaxPartBytes),
                      .file = ObjectPath(settings_.address, name)});
  }
  CAIRN_TRY_ASSIGN(Connection* const own, connection());
  return std::make_unique<RadosUpload>(*own->session, std::string(name), part_bytes);
}

void RadosStorage::AwaitChange(std::string_view prefix, std::chrono::milliseconds timeout) {
  const auto own = connection();
  if (!own) return std::this_thread::sleep_for(timeout);
  (*own)->notices.Await(prefix, timeout);
}

std::string RadosStorage::identity() const {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string_view(value == nullptr ? "" : value);
  };
  const std::string_view conf = settings_.conf.empty() ? variable("CEPH_CONF") : settings_.conf;
  // As a digest, because CEPH_ARGS may contain a key.
  return fmt::format("{} of {} {:016x}", settings_.address, conf,
                     Checksum64(std::as_bytes(std::span(variable("CEPH_ARGS")))));
}

Result<std::shared_ptr<Storage>> OpenRadosStorage(const std::string& address) {
  CAIRN_TRY_ASSIGN(RadosSettings settings, ParseRadosAddress(address));
  return std::make_shared<RadosStorage>(std::move(settings));
}

}  // namespace cairn::kv::internal
