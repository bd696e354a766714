#pragma once
/// Ranks that each have a GPU, over NCCL: from GPU to GPU, without a way through host memory where
/// the hardware has one.
///
/// Verified against a simulated CUDA runtime and a simulated NCCL only; never on several GPUs.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/ranks/communicator.h"
#include "cuda/nccl_stop.h"
#include "kv/error.h"

namespace cairn::cuda {

struct NcclOptions {
  /// Of this rank; no two ranks have the same.
  int device = 0;

  /// Of connecting, of each call, and of those on communicators split from it.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);

  /// Of connecting, if that is to take less.
  std::optional<std::chrono::milliseconds> connect_timeout;

  /// Device memory that ranges in host memory pass through: taken once, by each communicator, those
  /// split from it too. The same on all ranks; at least kMinNcclBufferBytes.
  uint64_t buffer_bytes = 64ull << 20;

  /// A cudaStream_t of `device`, null for the default stream. It stays valid as long as the
  /// communicator and those split from it. What a call does to ranges in device memory comes after
  /// all that this stream held when the call began.
  void* stream = nullptr;

  /// No stream is followed: the caller waits for all that writes or reads the ranges.
  bool follows_no_stream = false;

  /// Ends this rank's calls, those on communicators split from it too. Null: nothing but deadlines
  /// does.
  std::shared_ptr<NcclStop> stop;
};

inline constexpr uint64_t kMinNcclBufferBytes = 64ull << 10;

/// Connects the ranks of `host`, numbered as there; each of them calls it. `host` may be any other
/// communicator and is not needed afterwards. One rank's failure is every rank's: all get the same
/// error, that of the lowest rank that has one, and nothing is left behind.
///
/// kInvalidArgument: bad options, or ranks that give another buffer_bytes. kUnimplemented: a build
/// without NCCL's header. kFailedPrecondition: no NCCL of 2.18.1 or newer here (which one was found
/// and what to install), not the same version on all ranks, no GPU or no driver.
/// kResourceExhausted: no device memory for buffers. kUnavailable: NCCL could not connect, or not
/// in time: the shortest of `timeout`, `connect_timeout` and half of `host`'s.
///
/// The result keeps the contract of core/ranks/communicator.h, and:
///   - Ranges may lie in memory of its device() or in host memory, also both in one call and
///   another
///     way on each rank. Memory of another device is kInvalidArgument.
///   - A call enqueues on streams of its own and waits on the host until its work is done, so that
///     what the caller does next, on any stream, comes after it. Work that comes before it must be
///     on `stream`, or be waited for.
///   - Nothing waits without a deadline. At the deadline, or when NCCL reports that a peer is gone,
///     this rank's work is aborted (ncclCommAbort) and the call fails; the other ranks may learn of
///     it only at their own deadlines. A call may then take up to five seconds more, until nothing
///     runs on the device that could still touch the ranges.
///   - Ranks that give other lengths or call other collectives fail at the deadline where NCCL
///     waits, and may find anything in their ranges where it does not. Nothing is written outside
///     of them.
///   - Split is ncclCommSplit. Parts are used one after another, or by all ranks in one order: two
///     of NCCL's kernels that wait for each other on one GPU may not fit there together.
/// Destroying it waits until peers have been sent what they still read, up to five seconds.
Result<std::unique_ptr<core::Communicator>> ConnectNccl(core::Communicator& host,
                                                        const NcclOptions& options);

/// "2.28.9 (/usr/lib/x86_64-linux-gnu/libnccl.so.2)". Errors as ConnectNccl's of finding NCCL.
Result<std::string> DescribeNccl();

}  // namespace cairn::cuda
