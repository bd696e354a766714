#pragma once
// SPDX-License-Identifier: Apache-2.0
/// A communicator over NCCL for ranks that each have a GPU. Bytes are transferred from GPU to GPU,
/// without a copy in host memory if the hardware supports that.
///
/// Verified only with a simulated CUDA runtime and a simulated NCCL; never on several GPUs.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/ranks/communicator.h"
#include "cuda/nccl_stop.h"
#include "kv/base/error.h"

namespace cairn::cuda {

struct NcclOptions {
  /// The GPU of this rank. No two ranks may use the same one.
  int device = 0;

  /// Limit of connecting and of each call, also for communicators that are split from this one.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);

  /// A shorter limit for connecting.
  std::optional<std::chrono::milliseconds> connect_timeout;

  /// Device memory that ranges in host memory pass through. Each communicator allocates it once,
  /// also communicators that are split from this one. Must be equal on all ranks and at least 1 KiB
  /// per rank and 256 bytes.
  uint64_t buffer_bytes = 64ull << 20;

  /// A cudaStream_t of `device`; null for the default stream. It must stay valid as long as the
  /// communicator and the communicators split from it. A call accesses ranges in device memory
  /// after all work that this stream contained when the call began.
  void* stream = nullptr;

  /// If true, `stream` is ignored: before a call, the caller waits for all work that accesses the
  /// ranges.
  bool follows_no_stream = false;

  /// Ends calls of this rank, also on communicators split from this one. Null: only deadlines end
  /// them.
  std::shared_ptr<NcclStop> stop;
};

/// Connects the ranks of `host`, with the same rank numbers. Collective. `host` may be any other
/// communicator and is not needed afterwards. If one rank fails, all ranks return the error of the
/// lowest rank that failed, and no rank keeps any resource.
///
/// kInvalidArgument: bad options, or buffer_bytes differs between ranks. kUnimplemented: this build
/// was made without NCCL's header. kFailedPrecondition: there is no NCCL of version 2.18.1 or newer
/// (the message states which version was found and what to install), the versions of the ranks
/// differ, or there is no GPU or no driver. kResourceExhausted: no device memory for the buffers.
/// kUnavailable: NCCL could not connect, or not within the shortest of `timeout`, `connect_timeout`
/// and half of the timeout of `host`.
///
/// The result implements the contract of core/ranks/communicator.h. In addition:
///   - Ranges may be in memory of its device() or in host memory, in any combination, and ranks may
///     differ in this. Memory of another device is kInvalidArgument.
///   - A call enqueues on streams of the communicator and blocks until its work is done. Later work
///     of the caller, on any stream, therefore runs after the call. Earlier work must be on
///     `stream`, or the caller must wait for it.
///   - Every wait has a deadline. At the deadline, or when NCCL reports that a peer is gone, the
///     work of this rank is aborted (ncclCommAbort) and the call fails; the other ranks may notice
///     this only at their own deadlines. The call may then take up to five more seconds, until the
///     device runs nothing that could still access the ranges.
///   - If ranks give different lengths or call different collectives, a call fails at its deadline
///     if NCCL waits; otherwise the contents of the ranges are unspecified. Nothing is written
///     outside the ranges.
///   - Split is ncclCommSplit. Use the resulting communicators one after another, or in the same
///     order on all ranks: two kernels of NCCL that wait for each other on one GPU may not fit on
///     it together.
///   - Interrupt calls NcclStop::Request of `stop`: it also ends the calls of communicators split
///     from this one, and does not inform the peers. CheckPeers always succeeds.
/// The destructor waits, up to five seconds, until peers have received what was sent to them.
Result<std::unique_ptr<core::Communicator>> ConnectNccl(core::Communicator& host,
                                                        const NcclOptions& options);

/// Returns the version and the file of NCCL, such as
/// "2.28.9 (/usr/lib/x86_64-linux-gnu/libnccl.so.2)". kUnimplemented: this build was made without
/// NCCL's header. kFailedPrecondition: there is no NCCL of version 2.18.1 or newer.
Result<std::string> DescribeNccl();

}  // namespace cairn::cuda
