#pragma once
/// Ranks that exchange bytes: the contract that every communicator keeps, host and NCCL alike.
///
/// Collectives: every rank of the communicator calls the same ones in the same order, with the same
/// root. Byte ranges may have any length, 0 included, and another one for each rank; where a
/// receiver gives memory, it knows the length that is sent (`GatherV` and its kin in
/// core/ranks/gather_v.h exchange lengths first). Ranges of one call do not overlap.
///
/// Every call ends within the communicator's deadline. Errors are the same everywhere:
///   kUnavailable       a peer died, went away, or the deadline passed; names operation and peer
///                      where it is known. The communicator is broken from then on: each later call
///                      fails with kFailedPrecondition at once.
///   kInvalidArgument   bad arguments of this rank (a root that is no rank, not one range a rank);
///                      nothing was sent.
/// After an error what a call writes to holds anything.
///
/// Threads: one call at a time.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"
#include "kv/error.h"

namespace cairn::core {

using ByteView = std::span<const std::byte>;
using ByteTarget = std::span<std::byte>;

class Communicator {
 public:
  virtual ~Communicator() = default;

  /// Of this process; ranks are numbered from 0.
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  /// Byte ranges lie in host memory, or in that of this device, whose streams the communicator's
  /// own header tells of. kHostDevice: in host memory only.
  virtual int device() const { return kHostDevice; }
  /// The longest that one call may take.
  virtual std::chrono::milliseconds timeout() const = 0;

  /// Returns once every rank has called it.
  virtual Result<void> Barrier() = 0;

  /// `bytes` of the root end up in `bytes` of every rank; all give the same length.
  virtual Result<void> Broadcast(ByteTarget bytes, int root) = 0;

  /// Rank i's `mine` ends up in the root's `all[i]`. Elsewhere `all` is not looked at.
  virtual Result<void> Gather(ByteView mine, std::span<const ByteTarget> all, int root) = 0;

  /// Rank i's `mine` ends up in every rank's `all[i]`.
  virtual Result<void> AllGather(ByteView mine, std::span<const ByteTarget> all) = 0;

  /// The root's `all[i]` ends up in rank i's `mine`. Elsewhere `all` is not looked at.
  virtual Result<void> Scatter(std::span<const ByteView> all, ByteTarget mine, int root) = 0;

  /// Rank i's `sent[j]` ends up in rank j's `received[i]`.
  virtual Result<void> AllToAll(std::span<const ByteView> sent,
                                std::span<const ByteTarget> received) = 0;

  /// Divides the ranks: those that give the same `color` get a communicator of their own, numbered
  /// by `key`, and by their rank here where keys are equal. Every rank of this communicator calls
  /// it; it stays usable beside the new ones.
  virtual Result<std::unique_ptr<Communicator>> Split(uint32_t color, uint32_t key) = 0;
};

}  // namespace cairn::core
