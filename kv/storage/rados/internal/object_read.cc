// A read of the head, then of the stripes that it names:
//
//   1. With a layout from an earlier read, go to 3.
//   2. Read the head with its layout, and the range of its bytes. Without a layout, this was all.
//   3. Read the stripes of the range. If one is missing, the object has been removed or replaced
//      since the head was read: forget the layout and go to 2. If the head still names the stripe
//      that is missing, it is lost.

#include "kv/storage/rados/internal/object_read.h"

#include <algorithm>
#include <cerrno>
#include <future>
#include <memory>
#include <utility>

#include "kv/base/mutex.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {
namespace {

constexpr int kMaxAttempts = 10;

// One request to a head: its length, its layout, and its bytes from an offset on. Not movable
// because librados stores the results in it.
class HeadRequest {
 public:
  /// `target` outlives the request.
  HeadRequest(const RadosSession& session, uint64_t offset_bytes, std::span<std::byte> target)
      : session_(session), op_(session.api().create_read_op()) {
    const RadosApi& api = session_.api();
    api.read_op_stat(op_, &head_bytes_, nullptr, nullptr);
    api.read_op_getxattrs(op_, &xattrs_, nullptr);
    // To RADOS, a read of no bytes is one of all.
    if (target.empty()) return;
    api.read_op_read(op_, offset_bytes, target.size(), reinterpret_cast<char*>(target.data()),
                     &read_bytes_, nullptr);
  }
  ~HeadRequest() {
    if (xattrs_ != nullptr) session_.api().getxattrs_end(xattrs_);
    session_.api().release_read_op(op_);
  }
  HeadRequest(const HeadRequest&) = delete;
  HeadRequest& operator=(const HeadRequest&) = delete;

  RadosReadOp op() const { return op_; }
  // After it has succeeded:
  uint64_t head_bytes() const { return head_bytes_; }
  uint64_t read_bytes() const { return read_bytes_; }
  /// Returns nothing if the head contains the bytes of the object. May be called once.
  Result<std::optional<StripeLayout>> Layout() {
    while (true) {
      const char* name = nullptr;
      const char* value = nullptr;
      size_t length_bytes = 0;
      const int result = session_.api().getxattrs_next(xattrs_, &name, &value, &length_bytes);
      if (result < 0 || name == nullptr) return std::nullopt;
      if (std::string_view(name) != kLayoutXattr) continue;
      return DecodeLayout(std::string_view(value, length_bytes));
    }
  }

 private:
  const RadosSession& session_;
  const RadosReadOp op_;
  RadosXattrs xattrs_ = nullptr;
  uint64_t head_bytes_ = 0;
  size_t read_bytes_ = 0;
};

// Owned by the callbacks in flight, of which there is at least one until `done_` has been called.
class ObjectRead : public std::enable_shared_from_this<ObjectRead> {
 public:
  ObjectRead(RadosSession& session, std::string_view name, uint64_t offset_bytes,
             std::span<std::byte> target, RadosDone done)
      : session_(session),
        name_(name),
        offset_bytes_(offset_bytes),
        target_(target),
        done_(std::move(done)) {}

  void Start() {
    std::optional<StripeLayout> layout = session_.FindLayout(name_);
    if (layout) return StartStripes(*std::move(layout));
    StartHead();
  }

 private:
  void StartHead() {
    ++attempts_;
    head_ = std::make_unique<HeadRequest>(session_, offset_bytes_, target_);
    session_.StartOperation(
        [&](RadosCompletion completion) {
          return session_.api().aio_read_op_operate(head_->op(), session_.heads(), completion,
                                                    name_.c_str(), 0);
        },
        [read = shared_from_this()](int result) { read->HandleHead(result); });
  }

  void HandleHead(int result) {
    if (result < 0) return Finish(Fail(ReadError(result)));
    auto layout = head_->Layout();
    if (!layout) {
      return Finish(Fail(std::move(layout).error().WithFile(session_.FileOf(name_))));
    }
    if (*layout) {
      if (attempts_ >= kMaxAttempts || (missing_ && missing_->unique == (*layout)->unique)) {
        return Finish(Fail(ErrorCode::kDataLoss, "a stripe of the object is missing",
                           session_.FileOf(name_), offset_bytes_));
      }
      session_.RememberLayout(name_, **layout);
      return StartStripes(**std::move(layout));
    }
    const bool begins_inside = !target_.empty() || offset_bytes_ <= head_->head_bytes();
    if (begins_inside && head_->read_bytes() == target_.size()) return Finish({});
    Finish(Fail(EndsBeforeRange(session_.FileOf(name_), head_->head_bytes(), offset_bytes_)));
  }

  void StartStripes(StripeLayout layout) {
    if (offset_bytes_ > layout.size_bytes || target_.size() > layout.size_bytes - offset_bytes_) {
      return Finish(
          Fail(EndsBeforeRange(session_.FileOf(name_), layout.size_bytes, offset_bytes_)));
    }
    const Result<RadosIoContext> pool = session_.Pool(layout.pool_id);
    if (!pool) return Finish(std::unexpected(pool.error()));
    if (target_.empty()) return Finish({});
    const uint64_t first = offset_bytes_ / layout.stripe_bytes;
    const uint64_t last = (offset_bytes_ + target_.size() - 1) / layout.stripe_bytes;
    {
      const MutexLock lock(mutex_);
      in_flight_ = last - first + 1;
      result_ = 0;
    }
    layout_ = std::move(layout);
    // The last callback may change the layout while this loop still runs.
    const StripeLayout own = layout_;
    for (uint64_t i = first; i <= last; ++i) StartStripe(*pool, own, i);
  }

  void StartStripe(RadosIoContext pool, const StripeLayout& layout, uint64_t index) {
    const uint64_t stripe_begin = index * layout.stripe_bytes;
    const uint64_t begin = std::max(offset_bytes_, stripe_begin);
    const uint64_t end =
        std::min(offset_bytes_ + target_.size(), stripe_begin + layout.stripe_bytes);
    const std::string object = StripeName(name_, layout.unique, index);
    auto* const buffer = reinterpret_cast<char*>(target_.data() + (begin - offset_bytes_));
    session_.StartOperation(
        [&](RadosCompletion completion) {
          return session_.api().aio_read(pool, object.c_str(), completion, buffer, end - begin,
                                         begin - stripe_begin);
        },
        [read = shared_from_this(), expected_bytes = end - begin](int result) {
          const bool is_short = result >= 0 && static_cast<uint64_t>(result) != expected_bytes;
          read->HandleStripe(is_short ? -ENODATA : std::min(result, 0));
        });
  }

  void HandleStripe(int result) {
    int worst = 0;
    {
      const MutexLock lock(mutex_);
      // Other errors have precedence over a stripe that is missing.
      if (result != 0 && (result_ == 0 || result_ == -ENOENT)) result_ = result;
      if (--in_flight_ > 0) return;
      worst = result_;
    }
    if (worst == 0) return Finish({});
    if (worst == -ENOENT) {
      session_.ForgetLayout(name_);
      missing_ = layout_;
      return StartHead();
    }
    if (worst == -ENODATA) {
      return Finish(Fail(ErrorCode::kDataLoss, "a stripe of the object is shorter than its layout",
                         session_.FileOf(name_), offset_bytes_));
    }
    Finish(Fail(ReadError(worst)));
  }

  Error ReadError(int result) const {
    return session_.MakeError(result, "read the object", name_).WithOffset(offset_bytes_);
  }

  void Finish(Result<void> result) {
    // The owner of `session_` may destroy it during this call.
    RadosDone done = std::move(done_);
    head_.reset();
    done(std::move(result));
  }

  RadosSession& session_;
  const std::string name_;
  const uint64_t offset_bytes_;
  const std::span<std::byte> target_;
  RadosDone done_;
  // One step at a time uses these.
  int attempts_ = 0;
  std::unique_ptr<HeadRequest> head_;
  StripeLayout layout_;
  std::optional<StripeLayout> missing_;  // a layout of which a stripe did not exist

  Mutex mutex_;
  uint64_t in_flight_ CAIRN_GUARDED_BY(mutex_) = 0;
  int result_ CAIRN_GUARDED_BY(mutex_) = 0;
};

}  // namespace

Result<ObjectHead> ReadHead(RadosSession& session, std::string_view name,
                            std::span<std::byte> target) {
  HeadRequest request(session, 0, target);
  const std::string object(name);
  const int result =
      session.api().read_op_operate(request.op(), session.heads(), object.c_str(), 0);
  if (result < 0) return Fail(session.MakeError(result, "read the object", name));
  auto layout = request.Layout();
  if (!layout) return Fail(std::move(layout).error().WithFile(session.FileOf(name)));
  ObjectHead head{.size_bytes = request.head_bytes(),
                  .read_bytes = request.read_bytes(),
                  .layout = *std::move(layout)};
  if (head.layout) {
    head.size_bytes = head.layout->size_bytes;
    session.RememberLayout(name, *head.layout);
  } else {
    session.ForgetLayout(name);
  }
  return head;
}

void StartRead(RadosSession& session, std::string_view name, uint64_t offset_bytes,
               std::span<std::byte> target, RadosDone done) {
  std::make_shared<ObjectRead>(session, name, offset_bytes, target, std::move(done))->Start();
}

Result<void> ReadRangeOf(RadosSession& session, std::string_view name, uint64_t offset_bytes,
                         std::span<std::byte> target) {
  std::promise<Result<void>> promise;
  std::future<Result<void>> outcome = promise.get_future();
  StartRead(session, name, offset_bytes, target,
            [promise = std::move(promise)](Result<void> result) mutable {
              promise.set_value(std::move(result));
            });
  return outcome.get();
}

}  // namespace cairn::kv::internal
