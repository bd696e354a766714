#pragma once
/// Connections of one rank to all others of a group, and transfers on them, with Gloo's transport.
///
/// Properties of Gloo (from its source and from tests), and consequences:
///   - A message is sent once its receiver has requested its slot. A message that is longer than
///     its request ends the process. A slot therefore contains the number of the call, the
///     operation and the length: messages and requests that do not belong together never match, and
///     the call ends at its deadline.
///   - A connection that breaks wakes threads that wait for a message that has not begun, but not
///     threads that wait for the rest of one. Each part of more than kUnguardedBytes is therefore
///     followed by an empty message, the guard, for which the receiver waits first, and answered by
///     another one, the receipt, for which the sender waits first.
///   - A connection that breaks while Gloo begins to send what the peer has just requested does not
///     wake the sender. Waits for sends therefore check the connection regularly.
///   - A wait that times out closes all connections of the group. We also close them after any
///     other error, so that the peers notice it at once, and Gloo's thread does not access the
///     memory of a failed call.
///   - Writing to a closed connection raises SIGPIPE. It is blocked in Gloo's thread, and in other
///     threads as long as a SigpipeBlock exists.

#include <pthread.h>
#include <signal.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/ranks/communicator.h"
#include "core/ranks/internal/rendezvous.h"
#include "kv/base/error.h"

namespace gloo::transport {
class Device;
}

namespace cairn::core::internal {

/// Longer ranges are divided into parts: slots have 27 bits for the length, and ranks forward a
/// Broadcast part by part.
inline constexpr uint64_t kMaxGlooPartBytes = 16ull << 20;
inline constexpr uint64_t kUnguardedBytes = 64ull << 10;
inline constexpr uint64_t kMaxGlooAddressBytes = 512;
static_assert(kMaxGlooPartBytes < 1ull << 27);

/// Identifies a call; `sequence` is the same on all ranks.
struct GlooCall {
  Communicator::Operation operation;
  uint32_t sequence = 0;
  Deadline deadline;
};

/// Creates a device: a thread that groups share, and the numeric address on which they listen; if
/// `address` is empty, the address of `interface`. kUnavailable: it does not belong to this host.
Result<std::shared_ptr<gloo::transport::Device>> MakeGlooDevice(const std::string& address,
                                                                const std::string& interface);

/// Blocks SIGPIPE in this thread, and discards the ones that were raised.
class SigpipeBlock {
 public:
  SigpipeBlock();
  ~SigpipeBlock();
  SigpipeBlock(const SigpipeBlock&) = delete;
  SigpipeBlock& operator=(const SigpipeBlock&) = delete;

 private:
  bool was_blocked_ = false;
};

/// After an error the group is unusable; the caller calls `Close`. Threads: one call at a time.
class GlooGroup {
 public:
  /// Listens for each other rank. `timeout` is the longest time for one connection.
  static Result<std::unique_ptr<GlooGroup>> Listen(std::shared_ptr<gloo::transport::Device> device,
                                                   int rank, int size,
                                                   std::chrono::milliseconds timeout);
  ~GlooGroup();

  int rank() const;
  int size() const;
  /// The address to which each peer connects, by rank; empty for this rank. At most
  /// kMaxGlooAddressBytes each.
  const std::vector<std::string>& addresses() const { return addresses_; }
  /// Connects to all peers. `addresses` contains, by rank, the address of each peer for this rank.
  Result<void> Connect(const std::vector<std::string>& addresses);

  /// Sends `sent[i]` to rank i and receives `received[i]` from it, all concurrently; returns when
  /// all are complete. Copies the ranges of this rank. Empty ranges send nothing.
  Result<void> Exchange(const GlooCall& call, std::span<const ByteView> sent,
                        std::span<const ByteTarget> received);
  /// Dissemination barrier: in round k of ceil(log2(n)), rank i sends to i + 2^k and receives from
  /// i - 2^k.
  /// (Hensgen, Finkel and Manber: Two algorithms for barrier synchronization, 1988)
  Result<void> Barrier(const GlooCall& call);
  /// Broadcast along a binomial tree; each rank forwards a part while it receives the next one.
  Result<void> Broadcast(const GlooCall& call, ByteTarget bytes, int root);

  /// Closes all connections at once; peers notice it at their next call.
  void Close();
  /// Ends the wait of a call on another thread, and of every later call, with kUnavailable.
  /// Threads: any, concurrently with a call.
  void Interrupt();
  /// kUnavailable, naming the peer: its connection is closed. Does not wait. Threads: any,
  /// concurrently with a call.
  Result<void> CheckConnections();

 private:
  class Context;
  class Waits;
  class Transfers;
  explicit GlooGroup(std::shared_ptr<Context> context);

  const std::shared_ptr<Context> context_;  // shared because Gloo's functions take a shared_ptr
  const std::unique_ptr<Waits> waits_;
  std::vector<std::string> addresses_;
};

}  // namespace cairn::core::internal
