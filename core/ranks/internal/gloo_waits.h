#pragma once
/// Waits for Gloo's transfers that other threads can end, and that notice broken connections.

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <thread>

#include "core/ranks/internal/rendezvous.h"
#include "kv/base/error.h"
#include "kv/base/mutex.h"

namespace gloo {
class Context;
namespace transport {
class UnboundBuffer;
}
}  // namespace gloo

namespace cairn::core::internal {

/// Waits of one call at a time. Gloo can end the wait for a buffer only. Each function throws
/// gloo::IoException if the connection is closed, if the deadline has passed (then Gloo closes all
/// connections of the context), or after Interrupt.
class GlooWaits {
 public:
  /// `watch_slot` is the slot of the messages with which Check finds closed connections.
  GlooWaits(gloo::Context& context, uint64_t watch_slot);
  ~GlooWaits();
  /// Before all other calls. kResourceExhausted: no thread can be started.
  Result<void> Start();

  void Received(gloo::transport::UnboundBuffer& buffer, Deadline deadline);
  /// Looks regularly whether the connection to `peer` is closed: Gloo does not wake the sender if
  /// it finds this out while it begins to send what the peer has just requested.
  void Sent(gloo::transport::UnboundBuffer& buffer, int peer, Deadline deadline);

  /// Throws if the connection to the peer is closed: requests a message from it that is never sent,
  /// and a wait for it fails if the connection is closed. Does not wait. Threads: any.
  void Check(int peer);
  /// Ends the wait, and every later one. Threads: any.
  void Interrupt();

 private:
  struct Waiting;
  void Begin(gloo::transport::UnboundBuffer& buffer, bool sends);
  void End();
  [[noreturn]] void Abort();
  bool is_interrupted() const;
  /// Wakes a thread that has waited long for a send, so that it checks the connection.
  void WakeSender();

  gloo::Context& context_;
  const uint64_t watch_slot_;
  Mutex watching_;
  std::map<int, std::unique_ptr<gloo::transport::UnboundBuffer>> expected_
      CAIRN_GUARDED_BY(watching_);  // by peer
  mutable Mutex mutex_;
  CondVar changed_;
  bool is_interrupted_ CAIRN_GUARDED_BY(mutex_) = false;
  bool is_ended_ CAIRN_GUARDED_BY(mutex_) = false;
  bool sends_ CAIRN_GUARDED_BY(mutex_) = false;
  uint64_t wait_count_ CAIRN_GUARDED_BY(mutex_) = 0;
  gloo::transport::UnboundBuffer* waited_for_ CAIRN_GUARDED_BY(mutex_) = nullptr;
  std::thread waker_;  // runs WakeSender, from Start on
};

}  // namespace cairn::core::internal
