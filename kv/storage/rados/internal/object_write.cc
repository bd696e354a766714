// Operations that change one RADOS object each, which makes them atomic.

#include "kv/storage/rados/internal/object_write.h"

#include <cerrno>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "kv/base/catch_exhaustion.h"
#include "kv/base/mutex.h"

namespace cairn::kv::internal {
namespace {

constexpr uint64_t kRemovesInFlight = 16;

// The changes of one object.
class WriteOp {
 public:
  explicit WriteOp(const RadosApi& api) : api_(api), op_(api.create_write_op()) {}
  ~WriteOp() { api_.release_write_op(op_); }
  WriteOp(const WriteOp&) = delete;
  WriteOp& operator=(const WriteOp&) = delete;

  void Create(HeadMode mode) {
    api_.write_op_create(
        op_, mode == HeadMode::kCreate ? kRadosCreateExclusive : kRadosCreateIdempotent, nullptr);
  }
  void WriteFull(std::span<const std::byte> bytes) {
    api_.write_op_write_full(op_, reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  void SetLayout(const std::string& text) {
    api_.write_op_setxattr(op_, kLayoutXattr, text.data(), text.size());
  }
  void RemoveLayout() { api_.write_op_rmxattr(op_, kLayoutXattr); }
  void Remove() { api_.write_op_remove(op_); }

  int Perform(RadosIoContext pool, const std::string& object) {
    return api_.write_op_operate(op_, pool, object.c_str(), nullptr, kRadosFullTry);
  }
  /// Calls `done` also if the request cannot be begun.
  void Start(RadosIoContext pool, const std::string& object,
             std::move_only_function<void(int)> done) {
    auto call = std::make_unique<Call>(Call{.api = &api_, .done = std::move(done)});
    RadosCompletion completion = nullptr;
    CAIRN_CHECK(api_.aio_create_completion(call.get(), &WriteOp::OnDone, nullptr, &completion) ==
                0);
    const int result =
        api_.aio_write_op_operate(op_, pool, completion, object.c_str(), nullptr, kRadosFullTry);
    if (result >= 0) {
      call.release();  // owned by the callback
      return;
    }
    api_.aio_release(completion);
    call->done(result);
  }

 private:
  struct Call {
    const RadosApi* api;
    std::move_only_function<void(int)> done;
  };

  static void OnDone(RadosCompletion completion, void* argument) {
    const std::unique_ptr<Call> call(static_cast<Call*>(argument));
    const int result = call->api->aio_get_return_value(completion);
    call->api->aio_release(completion);
    call->done(result);
  }

  const RadosApi& api_;
  const RadosWriteOp op_;
};

}  // namespace

int PutHead(RadosSession& session, std::string_view name, std::span<const std::byte> bytes,
            HeadMode mode) {
  WriteOp op(session.api());
  op.Create(mode);
  op.WriteFull(bytes);
  // The object that is replaced may have one. To remove an absent one is not an error.
  if (mode == HeadMode::kReplace) op.RemoveLayout();
  return op.Perform(session.heads(), std::string(name));
}

int PutHead(RadosSession& session, std::string_view name, const StripeLayout& layout,
            HeadMode mode) {
  WriteOp op(session.api());
  op.Create(mode);
  if (mode == HeadMode::kReplace) op.WriteFull({});
  op.SetLayout(EncodeLayout(layout));
  return op.Perform(session.heads(), std::string(name));
}

int RemoveHead(RadosSession& session, std::string_view name) {
  WriteOp op(session.api());
  op.Remove();
  return op.Perform(session.heads(), std::string(name));
}

void StartStripeWrite(RadosSession& session, const std::string& object,
                      std::span<const std::byte> bytes, std::move_only_function<void(int)> done) {
  WriteOp op(session.api());
  op.WriteFull(bytes);
  op.Start(session.stripes(), object, std::move(done));
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
  Mutex mutex;
  CondVar changed;
  uint64_t in_flight = 0;
  int failure = 0;
  for (const uint64_t i : indices) {
    {
      const MutexLock lock(mutex);
      while (in_flight == kRemovesInFlight) changed.Wait(mutex);
      ++in_flight;
    }
    const auto end = [&](int result) {
      const MutexLock lock(mutex);
      if (result < 0 && result != -ENOENT) failure = result;
      --in_flight;
      changed.NotifyOne();
    };
    const auto begun = CatchExhaustion("a request", [&]() -> Result<void> {
      WriteOp op(session.api());
      op.Remove();
      op.Start(pool, StripeName(name, layout.unique, i), end);
      return {};
    });
    if (!begun) end(-ENOMEM);  // the writes in flight use this frame
  }
  const MutexLock lock(mutex);
  while (in_flight > 0) changed.Wait(mutex);
  if (failure < 0) return Fail(session.MakeError(failure, "remove a stripe", name));
  return {};
}

}  // namespace cairn::kv::internal
