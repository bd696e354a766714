#pragma once
/// Gloo's transport: connections of one rank to all others of a group, and transfers over them.
///
/// What Gloo does, and what follows (as read in its source and seen in tests):
///   - A message goes out once its receiver has asked for it, by slot. A message that is longer
///   than
///     what was asked for ends the process. So a slot holds the number of the call, the operation
///     and the length: what does not belong together never meets, and ends at the deadline.
///   - A connection that breaks wakes who waits for a message that has not begun, but not who waits
///     for one that is half way. So a piece of more than kUnguardedBytes is followed by an empty
///     message, the guard, that the receiver waits for first, and answered by another, that the
///     sender waits for first.
///   - A wait that times out closes all connections of the group. We close them after any other
///     error too: the ranks on the other side learn of it at once, and Gloo's thread touches no
///     memory of a failed call.
///   - Writing to a connection that is gone raises SIGPIPE: blocked in Gloo's thread, and in ours
///     as long as a SigpipeBlock lives.

#include <pthread.h>
#include <signal.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/ranks/communicator.h"
#include "core/ranks/internal/rendezvous.h"
#include "kv/error.h"

namespace gloo::transport {
class Device;
}

namespace cairn::core::internal {

/// Longer ranges are cut: slots give the length 27 bits, and a Broadcast passes on piece by piece.
inline constexpr uint64_t kMaxGlooPieceBytes = 16ull << 20;
inline constexpr uint64_t kUnguardedBytes = 64ull << 10;
static_assert(kMaxGlooPieceBytes < 1ull << 27);

enum class GlooOperation : uint64_t {
  kBarrier,
  kBroadcast,
  kGather,
  kAllGather,
  kScatter,
  kAllToAll,
  kWatch,  // never sent: see GlooGroup::CheckConnections
};

/// A call: all ranks number theirs alike.
struct GlooCall {
  GlooOperation operation;
  uint32_t sequence = 0;
  Deadline deadline;
};

/// The thread that groups share, and the address in digits, or else the interface, at which they
/// listen. kUnavailable: not of this host.
Result<std::shared_ptr<gloo::transport::Device>> MakeGlooDevice(const std::string& address,
                                                                const std::string& interface);

/// Keeps SIGPIPE from this thread, and takes the one that came in between off it.
class SigpipeBlock {
 public:
  SigpipeBlock();
  ~SigpipeBlock();
  SigpipeBlock(const SigpipeBlock&) = delete;
  SigpipeBlock& operator=(const SigpipeBlock&) = delete;

 private:
  bool was_blocked_ = false;
};

/// Threads: one call at a time. Errors leave the group useless: `Close` it.
class GlooGroup {
 public:
  struct Send {
    int peer = 0;
    ByteView bytes;
  };
  struct Receive {
    int peer = 0;
    ByteTarget bytes;
  };

  /// Listens for each other rank. `timeout` is what one connection may take.
  static Result<std::unique_ptr<GlooGroup>> Listen(std::shared_ptr<gloo::transport::Device> device,
                                                   int rank, int size,
                                                   std::chrono::milliseconds timeout);
  ~GlooGroup();

  int rank() const;
  int size() const;
  /// Where `peer` connects to; empty for this rank. At most kMaxPieceBytes.
  const std::vector<std::string>& addresses() const { return addresses_; }
  /// Takes from each rank the address that it gave for this one.
  Result<void> Connect(const std::vector<std::string>& addresses);

  /// Everything at once; ends when all of it has been sent and received. Empty ranges move nothing.
  Result<void> Exchange(const GlooCall& call, const std::vector<Send>& sends,
                        const std::vector<Receive>& receives);
  /// Dissemination: in ceil(log2(n)) rounds rank i tells i + 2^k and hears of i - 2^k.
  /// (Hensgen, Finkel and Manber: Two algorithms for barrier synchronization, 1988)
  Result<void> Barrier(const GlooCall& call);
  /// Down a binomial tree; each rank passes a piece on while the next one comes in.
  Result<void> Broadcast(const GlooCall& call, ByteTarget bytes, int root);

  /// Ends all connections at once; peers see it at their next call.
  void Close();
  /// Ends the wait of the call that another thread is in, and each later one, with kUnavailable.
  /// Threads: any, beside a call.
  void Interrupt();
  /// kUnavailable, naming the peer: its connection is gone. Does not wait. Threads: any, beside a
  /// call.
  Result<void> CheckConnections();

 private:
  class Context;
  class Transfers;
  class Waits;
  class Watch;
  explicit GlooGroup(std::shared_ptr<Context> context);

  const std::shared_ptr<Context> context_;  // shared with Gloo's algorithms, which ask for it so
  const std::unique_ptr<Waits> waits_;
  const std::unique_ptr<Watch> watch_;
  std::vector<std::string> addresses_;
};

}  // namespace cairn::core::internal
