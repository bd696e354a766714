// Operations that change one RADOS object each, which makes them atomic, and uploads made of them.
// Stripes are leftovers if the head with their name is absent or names others.

#include "kv/storage/rados/internal/object_write.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "kv/base/catch_exhaustion.h"
#include "kv/io/worker_pool.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/rados/internal/object_read.h"

namespace cairn::kv::internal {
namespace {

constexpr size_t kRemovesInFlight = 16;
constexpr uint64_t kMaxObjects = 1 << 26;
constexpr std::chrono::hours kLongestEnumeration{1};
constexpr std::chrono::minutes kLongestRemoval{10};  // from one pool

// The changes of one object, which the functions of librados add.
class WriteOp {
 public:
  explicit WriteOp(const RadosSession& session)
      : api_(session.api()), op_(api_.create_write_op()) {}
  ~WriteOp() { api_.release_write_op(op_); }
  WriteOp(const WriteOp&) = delete;
  WriteOp& operator=(const WriteOp&) = delete;
  operator RadosWriteOp() const { return op_; }  // NOLINT(google-explicit-constructor)

  void Create(HeadMode mode) {
    api_.write_op_create(
        op_, mode == HeadMode::kCreate ? kRadosCreateExclusive : kRadosCreateIdempotent, nullptr);
  }
  void WriteFull(std::span<const std::byte> bytes) {
    api_.write_op_write_full(op_, reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  int Perform(RadosIoContext pool, const std::string& object) {
    return api_.write_op_operate(op_, pool, object.c_str(), nullptr, kRadosFullTry);
  }

 private:
  const RadosApi& api_;
  const RadosWriteOp op_;
};

}  // namespace

int PutHead(RadosSession& session, std::string_view name, std::span<const std::byte> bytes,
            HeadMode mode) {
  WriteOp op(session);
  op.Create(mode);
  op.WriteFull(bytes);
  // The object that is replaced may have one. To remove an absent one is not an error.
  if (mode == HeadMode::kReplace) session.api().write_op_rmxattr(op, kLayoutXattr);
  return op.Perform(session.heads(), std::string(name));
}

int PutHead(RadosSession& session, std::string_view name, const StripeLayout& layout,
            HeadMode mode) {
  WriteOp op(session);
  op.Create(mode);
  if (mode == HeadMode::kReplace) op.WriteFull({});
  const std::string text = EncodeLayout(layout);
  session.api().write_op_setxattr(op, kLayoutXattr, text.data(), text.size());
  return op.Perform(session.heads(), std::string(name));
}

int RemoveHead(RadosSession& session, std::string_view name) {
  WriteOp op(session);
  session.api().write_op_remove(op);
  return op.Perform(session.heads(), std::string(name));
}

void StartStripeWrite(RadosSession& session, const std::string& object,
                      std::span<const std::byte> bytes, std::move_only_function<void(int)> done) {
  WriteOp op(session);
  op.WriteFull(bytes);
  session.StartOperation(
      [&](RadosCompletion completion) {
        return session.api().aio_write_op_operate(op, session.stripes(), completion, object.c_str(),
                                                  nullptr, kRadosFullTry);
      },
      std::move(done));
}

Result<void> RemoveStripes(RadosSession& session, std::string_view name, const StripeLayout& layout,
                           uint64_t count) {
  std::vector<uint64_t> indices(count);
  std::iota(indices.begin(), indices.end(), uint64_t{0});
  return RemoveStripes(session, name, layout, indices);
}

Result<void> RemoveStripes(RadosSession& session, std::string_view name, const StripeLayout& layout,
                           std::span<const uint64_t> indices) {
  CAIRN_TRY_ASSIGN(const RadosIoContext pool, session.Pool(layout.pool_id));
  const auto remove = [&](size_t i) -> Result<void> {
    WriteOp op(session);
    session.api().write_op_remove(op);
    const int result = op.Perform(pool, StripeName(name, layout.unique, indices[i]));
    if (result >= 0 || result == -ENOENT) return {};
    return Fail(session.MakeError(result, "remove a stripe", name));
  };
  return RunOnThreads(indices.size(), "removals of stripes", remove, kRemovesInFlight);
}

RadosUpload::RadosUpload(RadosSession& session, std::string name, uint64_t part_bytes,
                         HeadMode mode)
    : session_(session),
      name_(std::move(name)),
      mode_(mode),
      layout_{
          .stripe_bytes = part_bytes, .pool_id = session.stripe_pool_id(), .unique = NewUnique()},
      last_part_(std::chrono::steady_clock::now()) {
  CAIRN_CHECK(part_bytes > 0);
}

RadosUpload::~RadosUpload() {
  if (keeps_stripes_ || part_count_ == 0 || !session_.is_usable()) return;
  // RemoveLeftovers removes the stripes that remain after an error.
  CleanUp([&] { (void)RemoveStripes(session_, name_, layout_, part_count_); });
}

void RadosUpload::StartWrite(std::span<const std::byte> bytes, uint64_t offset_bytes, Done done) {
  CAIRN_CHECK(offset_bytes == part_count_ * layout_.stripe_bytes &&
              bytes.size() <= layout_.stripe_bytes);
  if (part_count_ == kMaxStripes) {
    return done(Fail(ErrorCode::kResourceExhausted,
                     fmt::format("cannot write a stripe: the object has more than {} stripes of {} "
                                 "bytes; use larger blocks",
                                 kMaxStripes, layout_.stripe_bytes),
                     session_.FileOf(name_)));
  }
  last_part_ = std::chrono::steady_clock::now();
  StartStripeWrite(session_, StripeName(name_, layout_.unique, part_count_++), bytes,
                   [&session = session_, name = name_, done = std::move(done)](int result) mutable {
                     if (result >= 0) return done({});
                     done(Fail(session.MakeError(result, "write a stripe", name)));
                   });
}

Result<void> RadosUpload::Finish(uint64_t size_bytes) {
  if (!session_.is_usable()) return Fail(session_.ForkedError(name_));
  if (std::chrono::steady_clock::now() - last_part_ > kMaxUploadPause) {
    return Fail(ErrorCode::kUnavailable,
                "cannot complete the object: its last part was written more than "
                "30 minutes ago, so another writer may remove it soon",
                session_.FileOf(name_));
  }
  layout_.size_bytes = size_bytes;
  CAIRN_CHECK(layout_.stripe_count() == part_count_);
  int result = part_count_ == 0 ? PutHead(session_, name_, std::span<const std::byte>(), mode_)
                                : PutHead(session_, name_, layout_, mode_);
  if (IsUnknownOutcome(result)) {
    // The request may be performed even later.
    keeps_stripes_ = true;
    const Result<ObjectHead> head = ReadHead(session_, name_, {});
    if (head && (part_count_ == 0 ? head->size_bytes == 0 : head->layout == layout_)) result = 0;
  }
  if (result < 0) return Fail(session_.MakeError(result, "complete the object", name_));
  keeps_stripes_ = true;
  if (part_count_ > 0) session_.RememberLayout(name_, layout_);
  return {};
}

namespace {

// The stripes of each upload, by the `unique` of its layout.
using Uploads = std::map<std::string, std::vector<uint64_t>>;

// Returns whether Cairn writes objects with this name in stripes, and the name's epoch is before
// `end_epoch`.
bool IsStripedBefore(uint32_t end_epoch, std::string_view name) {
  if (const auto parsed = ParseObjectName(name)) return parsed->id.epoch < end_epoch;
  return ParseRootName(name) || name.starts_with(kPendingFolder);
}

// Returns whether the upload is so old that nobody can still complete it.
Result<bool> IsOld(RadosSession& session, RadosIoContext pool, const std::string& last_stripe,
                   std::chrono::seconds min_age) {
  time_t written = 0;
  const int result = session.api().stat(pool, last_stripe.c_str(), nullptr, &written);
  if (result == -ENOENT) return false;
  if (result < 0) return Fail(session.MakeError(result, "read the age of a stripe", last_stripe));
  return std::time(nullptr) - written >= min_age.count();
}

Result<void> RemoveUploads(RadosSession& session, RadosIoContext pool, const std::string& name,
                           const Uploads& uploads, std::chrono::seconds min_age) {
  for (const auto& [unique, stripes] : uploads) {
    const std::string last = StripeName(name, unique, *std::ranges::max_element(stripes));
    CAIRN_TRY_ASSIGN(const bool is_old, IsOld(session, pool, last, min_age));
    if (!is_old) continue;
    // After the age: an upload that is old and has no head now never gets one.
    const Result<ObjectHead> head = ReadHead(session, name, {});
    if (!head && head.error().code != ErrorCode::kNotFound) return std::unexpected(head.error());
    if (head && head->layout && head->layout->unique == unique) continue;
    const StripeLayout layout{
        .stripe_bytes = 1, .pool_id = session.api().ioctx_get_id(pool), .unique = unique};
    CAIRN_TRY(RemoveStripes(session, name, layout, stripes));
  }
  return {};
}

Result<void> RemoveFromPool(RadosSession& session, RadosIoContext pool,
                            const std::set<std::string, std::less<>>& heads, uint32_t end_epoch,
                            std::chrono::seconds min_age) {
  std::map<std::string, Uploads> stripes;  // by the name of the object
  const int result = ForEachRadosObject(session, pool, [&](std::string_view object) {
    const auto stripe = ParseStripeName(object);
    if (stripe && IsStripedBefore(end_epoch, stripe->name)) {
      stripes[stripe->name][stripe->unique].push_back(stripe->index);
    }
  });
  if (result < 0) return Fail(session.MakeError(result, "list stripes", ""));
  const auto deadline = std::chrono::steady_clock::now() + kLongestRemoval;
  for (const auto& [name, uploads] : stripes) {
    if (std::chrono::steady_clock::now() > deadline) {
      return Fail(session.MakeError(-ETIMEDOUT, "remove leftover stripes", ""));
    }
    // Objects with such names are never replaced.
    const bool is_complete = uploads.size() == 1 && ParseObjectName(name) && heads.contains(name);
    if (!is_complete) CAIRN_TRY(RemoveUploads(session, pool, name, uploads, min_age));
  }
  return {};
}

}  // namespace

int ForEachRadosObject(RadosSession& session, RadosIoContext pool,
                       const std::function<void(std::string_view)>& visit) {
  const RadosApi& api = session.api();
  RadosObjectList list = nullptr;
  int result = api.nobjects_list_open(pool, &list);
  if (result < 0) return result;
  // librados limits the time of each of its requests, and not their number.
  const auto deadline = std::chrono::steady_clock::now() + kLongestEnumeration;
  const char* object = nullptr;
  for (uint64_t count = 0; result >= 0; ++count) {
    result = api.nobjects_list_next(list, &object, nullptr, nullptr);
    if (result >= 0) visit(object);
    if (count == kMaxObjects) result = -EOVERFLOW;
    if (count % 1024 == 0 && std::chrono::steady_clock::now() > deadline) result = -ETIMEDOUT;
  }
  api.nobjects_list_close(list);
  return result == -ENOENT ? 0 : result;  // ENOENT is the end
}

Result<void> RemoveLeftoverStripes(RadosSession& session, uint32_t end_epoch,
                                   std::chrono::seconds min_age) {
  std::set<std::string, std::less<>> heads;
  const int result = ForEachRadosObject(session, session.heads(), [&](std::string_view object) {
    if (ParseObjectName(object)) heads.emplace(object);
  });
  if (result < 0) return Fail(session.MakeError(result, "list objects", ""));
  CAIRN_TRY(RemoveFromPool(session, session.heads(), heads, end_epoch, min_age));
  if (session.has_data_pool()) {
    CAIRN_TRY(RemoveFromPool(session, session.stripes(), heads, end_epoch, min_age));
  }
  return {};
}

}  // namespace cairn::kv::internal
