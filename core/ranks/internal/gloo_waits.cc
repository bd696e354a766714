#include "core/ranks/internal/gloo_waits.h"

#include <gloo/common/error.h>
#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include "core/ranks/internal/rendezvous.h"
#include "kv/base/catch_exhaustion.h"

namespace cairn::core::internal {
namespace {

using gloo::transport::UnboundBuffer;

constexpr std::chrono::milliseconds kCheckInterval{250};

}  // namespace

GlooWaits::GlooWaits(gloo::Context& context, uint64_t watch_slot)
    : context_(context), watch_slot_(watch_slot) {}

void GlooWaits::Check(int peer) {
  const MutexLock lock(watching_);
  auto& buffer = expected_[peer];
  if (buffer == nullptr) {
    buffer = context_.createUnboundBuffer(nullptr, 0);
    buffer->recv(peer, watch_slot_);
  }
  // A wait that was aborted before it begins throws if the connection is broken, and returns
  // otherwise.
  buffer->abortWaitRecv();
  (void)buffer->waitRecv(std::chrono::milliseconds(1));
}

Result<void> GlooWaits::Start() {
  CAIRN_TRY_ASSIGN(waker_, kv::StartThread("the waits for other ranks", [this] { WakeSender(); }));
  return {};
}

GlooWaits::~GlooWaits() {
  {
    const MutexLock lock(mutex_);
    is_ended_ = true;
  }
  changed_.NotifyAll();
  if (waker_.joinable()) waker_.join();
}

/// A wait for `buffer`, which Interrupt can end.
struct GlooWaits::Waiting {
  Waiting(GlooWaits& waits_in, UnboundBuffer& buffer, bool sends) : waits(waits_in) {
    waits.Begin(buffer, sends);
  }
  ~Waiting() { waits.End(); }
  GlooWaits& waits;
};

void GlooWaits::Received(UnboundBuffer& buffer, Deadline deadline) {
  const Waiting waiting(*this, buffer, /*sends=*/false);
  if (!buffer.waitRecv(TimeLeft(deadline))) Abort();
}

void GlooWaits::Sent(UnboundBuffer& buffer, int peer, Deadline deadline) {
  const Waiting waiting(*this, buffer, /*sends=*/true);
  while (!buffer.waitSend(TimeLeft(deadline))) {
    if (is_interrupted()) Abort();
    Check(peer);
  }
}

void GlooWaits::Interrupt() {
  const MutexLock lock(mutex_);
  is_interrupted_ = true;
  if (waited_for_ == nullptr) return;
  // If the wait has not begun yet, the buffer remembers this.
  waited_for_->abortWaitRecv();
  waited_for_->abortWaitSend();
}

void GlooWaits::Begin(UnboundBuffer& buffer, bool sends) {
  bool is_interrupted = false;
  {
    const MutexLock lock(mutex_);
    is_interrupted = is_interrupted_;
    if (!is_interrupted) {
      waited_for_ = &buffer;
      sends_ = sends;
      ++wait_count_;
    }
  }
  if (is_interrupted) Abort();
}

void GlooWaits::End() {
  const MutexLock lock(mutex_);
  waited_for_ = nullptr;
}

/// Closes the connections before the buffers of the call are destroyed, like a wait that times out.
void GlooWaits::Abort() {
  context_.closeConnections();
  throw gloo::IoException("interrupted on this rank");
}

bool GlooWaits::is_interrupted() const {
  const MutexLock lock(mutex_);
  return is_interrupted_;
}

void GlooWaits::WakeSender() {
  const MutexLock lock(mutex_);
  while (!is_ended_) {
    const uint64_t wait = wait_count_;
    changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + kCheckInterval);
    if (waited_for_ != nullptr && sends_ && wait_count_ == wait) waited_for_->abortWaitSend();
  }
}

}  // namespace cairn::core::internal
