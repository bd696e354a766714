#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Ranks that exchange bytes: the contract that every communicator keeps, on the host and on NCCL.
///
/// Collectives: all ranks of a communicator call the same operations in the same order, with the
/// same root. A byte range may have any length, including 0, and the lengths may differ between
/// ranks. A receiver that provides memory knows the length that is sent; `AllGatherV` and
/// `BroadcastV` in core/ranks/gather_v.h exchange the lengths first. Requires that a range into
/// which a call receives overlaps no other range of the call; ranges that are sent may overlap.
///
/// Every call returns within the communicator's deadline. All implementations return these errors:
///   kUnavailable       A peer died or disconnected, or the deadline passed. The message names the
///                      operation, and the peer where it is known. The communicator is then broken:
///                      every later call fails with kFailedPrecondition at once.
///   kInvalidArgument   This rank's arguments are invalid (a root that is not a rank, or the number
///                      of ranges is not the world size). Nothing was sent.
/// After an error the contents of the ranges that the call writes to are unspecified.
///
/// Threads: one call at a time, except for `Interrupt` and `CheckPeers`.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor/tensor.h"
#include "kv/base/error.h"

namespace cairn::core {

using ByteView = std::span<const std::byte>;
using ByteTarget = std::span<std::byte>;

class Communicator {
 public:
  virtual ~Communicator() = default;

  /// The number of this process among the ranks, from 0.
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  /// The device whose memory byte ranges may be in, in addition to host memory; the header of the
  /// implementation states which streams order the accesses. kHostDevice: host memory only.
  virtual int device() const { return kHostDevice; }
  /// The longest time that one call may take.
  virtual std::chrono::milliseconds timeout() const = 0;

  /// Returns once every rank has called it.
  virtual Result<void> Barrier() = 0;

  /// Copies `bytes` of the root to `bytes` of every rank. Requires the same length on all ranks.
  virtual Result<void> Broadcast(ByteTarget bytes, int root) = 0;

  /// Copies `mine` of rank i to `all[i]` of the root. Other ranks ignore `all`.
  Result<void> Gather(ByteView mine, std::span<const ByteTarget> all, int root);

  /// Copies `mine` of rank i to `all[i]` of every rank.
  Result<void> AllGather(ByteView mine, std::span<const ByteTarget> all);

  /// Copies `all[i]` of the root to `mine` of rank i. Other ranks ignore `all`.
  Result<void> Scatter(std::span<const ByteView> all, ByteTarget mine, int root);

  /// Copies `sent[j]` of rank i to `received[i]` of rank j.
  Result<void> AllToAll(std::span<const ByteView> sent, std::span<const ByteTarget> received);

  enum class Operation : uint8_t { kBarrier, kBroadcast, kGather, kAllGather, kScatter, kAllToAll };
  /// What the four calls above do once they have checked their arguments: copies `sent[j]` of rank
  /// i to `received[i]` of rank j. Requires one range per rank in both, those of this rank with the
  /// same length.
  virtual Result<void> Exchange(Operation operation, std::span<const ByteView> sent,
                                std::span<const ByteTarget> received) = 0;

  /// Divides the ranks into groups, one per `color`, and returns the communicator of this rank's
  /// group. Its ranks are ordered by `key`, then by their rank in this communicator. Collective
  /// over this communicator, which remains usable.
  virtual Result<std::unique_ptr<Communicator>> Split(uint32_t color, uint32_t key) = 0;

  /// The next call takes at most `timeout`, if that is less than `timeout()`: the first call of
  /// what all ranks should do together. Has no effect where ranks do not wait, and for NCCL.
  virtual void LimitNextCall([[maybe_unused]] std::chrono::milliseconds timeout) {}

  /// Ends the call that another thread waits in, and the next call if there is none, with
  /// kUnavailable; the communicator is then broken. Returns at once. The header of the
  /// implementation states how the other ranks learn of it, and whether communicators split from
  /// this one are affected. Has no effect where no call waits for another rank.
  /// Threads: any, concurrently with a call.
  virtual void Interrupt() = 0;

  /// Reports, without a collective call, that a peer is gone: kUnavailable, naming the rank, as a
  /// call that needs the peer would. For ranks that wait for each other elsewhere, where nothing
  /// detects it. Returns at once; succeeds always if the implementation cannot detect it.
  /// Threads: any, concurrently with a call.
  virtual Result<void> CheckPeers() = 0;

 protected:
  /// kInvalidArgument: `root` is not a rank.
  Result<void> CheckRoot(Operation operation, int root) const;

  /// For communicators that an error breaks: `Broken` returns the error of a call with the name of
  /// the call and the rank; from then on `CheckUsable` fails with kFailedPrecondition.
  Error Broken(std::string_view call, Error error);
  Result<void> CheckUsable() const;
  bool is_broken() const { return !broken_by_.empty(); }

 private:
  std::string broken_by_;
};

/// Returns the name of the call, such as "AllGather".
const char* OperationName(Communicator::Operation operation);

/// What a rank tells the others in a Split.
struct SplitChoice {
  uint32_t color = 0;
  uint32_t key = 0;
  uint32_t is_ready = 1;  // 0: the rank has failed
};

/// Returns the ranks that have chosen `color`, by their rank in the part.
std::vector<int> RanksOfColor(std::span<const SplitChoice> choices, uint32_t color);

}  // namespace cairn::core
