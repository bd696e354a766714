#pragma once
/// Transfers of byte ranges over NCCL: device memory in place, host memory through device buffers
/// of bounded length.
///
/// A call is a sequence of steps. Each step copies the bytes to send from host memory into one half
/// of the buffers, starts NCCL's transfer, and copies received bytes to host memory. The halves
/// alternate, so that the copies of one step overlap with NCCL's work of the next. NCCL uses one
/// stream and the copies use another, for two reasons:
///   - A copy from or to pageable memory blocks the host until all earlier work of its stream is
///     done. On NCCL's stream it would wait for other ranks, without a deadline. Copies to the host
///     therefore start only when NCCL has finished the step, for which the host polls with a
///     deadline.
///   - When a call fails, no transfer to the caller's memory may continue: NCCL is aborted, and the
///     copies do not depend on other ranks.
///
/// In an exchange, step k transfers slice k of every range from and to every other rank. The length
/// of a slice depends only on the number of ranks and the length of the buffers, which are equal
/// everywhere, so that both ranks of a transfer cut it in the same way. All ranks take the steps in
/// ascending order: those in the first unfinished step are in that step or will reach it, and no
/// ranks wait for each other in a cycle.

#include <cuda_runtime_api.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/ranks/communicator.h"
#include "cuda/internal/nccl_handle.h"
#include "cuda/internal/stream.h"
#include "kv/base/error.h"

namespace cairn::cuda::internal {

/// Memory to send from or receive into. Memory that is sent is only read.
struct MemoryRange {
  std::byte* data = nullptr;
  uint64_t length_bytes = 0;
  bool on_device = false;
};

/// Streams and buffers of one communicator.
///
/// Ownership: borrows the stream that it follows. Threads: one call at a time. The device must be
/// current in every call except Locate. After an error of a call, the caller aborts the NcclHandle
/// and then calls `Drain`.
class NcclTransfers {
 public:
  /// Allocates `buffer_bytes` of device memory; later calls allocate nothing. The work of a call
  /// with ranges in device memory runs after all work that `follows`, if given, contains when the
  /// call begins. kInvalidArgument: `buffer_bytes` is below MinBufferBytes. kResourceExhausted: no
  /// device memory.
  static Result<std::unique_ptr<NcclTransfers>> Make(int device, int world_size,
                                                     uint64_t buffer_bytes,
                                                     std::optional<cudaStream_t> follows);
  /// Returns the length of buffers with room for the shortest slices.
  static constexpr uint64_t MinBufferBytes(int world_size) {
    return kAlignmentBytes + kHalves * 2 * kAlignmentBytes * static_cast<uint64_t>(world_size);
  }
  ~NcclTransfers();
  NcclTransfers(const NcclTransfers&) = delete;
  NcclTransfers& operator=(const NcclTransfers&) = delete;

  int device() const { return device_; }
  uint64_t buffer_bytes() const { return buffer_bytes_; }
  std::optional<cudaStream_t> follows() const { return follows_; }

  /// Determines whether `bytes` are in device memory. Memory that CUDA does not know is host
  /// memory. kInvalidArgument: they are in memory of another device.
  Result<MemoryRange> Locate(core::ByteView bytes) const;

  /// Each of these returns when the work of this rank is done. kUnavailable: the deadline passed,
  /// a stop was requested, or NCCL or the device failed.
  Result<void> Barrier(NcclHandle& nccl, Deadline deadline);
  Result<void> Broadcast(NcclHandle& nccl, int rank, int root, const MemoryRange& bytes,
                         Deadline deadline);
  /// Sends `sent[i]` to rank i and receives `received[i]` from it. The entry of this rank is
  /// copied. Requires one range per rank in both.
  Result<void> Exchange(NcclHandle& nccl, int rank, std::span<const MemoryRange> sent,
                        std::span<const MemoryRange> received, Deadline deadline);

  /// Makes the destructor wait at most one second for a busy device and free the memory in the
  /// background: cudaFree waits for all work of the device, including the work of others.
  void FreeInBackground() { frees_in_background_ = true; }

  /// After an abort: waits until the device has finished our work, at most until `deadline`.
  void Drain(Deadline deadline) noexcept;

 private:
  static constexpr uint64_t kAlignmentBytes = 256;  // of the slots
  static constexpr uint64_t kHalves = 2;

  struct Copy {
    std::byte* target = nullptr;
    const std::byte* source = nullptr;
    uint64_t length_bytes = 0;
  };
  /// Enqueues one call of NCCL on a stream.
  using Operation = std::function<ncclResult_t(const NcclHandle&, cudaStream_t)>;
  struct Step {
    std::vector<Copy> in;               // from host memory, before the operations
    std::vector<Operation> operations;  // one NCCL group
    std::vector<Copy> out;              // to host memory, after the operations
  };

  NcclTransfers(int device, uint64_t buffer_bytes, std::optional<cudaStream_t> follows)
      : device_(device), buffer_bytes_(buffer_bytes), follows_(follows) {}

  /// Executes the steps that `next(step, half)` sets, until it returns false. `half`: the half of
  /// the buffers that the step uses.
  template <typename Next>
  Result<void> RunSteps(NcclHandle& nccl, Deadline deadline, const Next& next);
  Result<void> Launch(NcclHandle& nccl, const Step& step, Deadline deadline) const;
  Result<void> StartCopies(std::span<const Copy> copies) const;
  Result<void> WaitFor(const NcclHandle& nccl, const Event& event, Deadline deadline) const;
  Result<void> FollowCaller(std::span<const MemoryRange> sent,
                            std::span<const MemoryRange> received) const;

  /// Adds to a step the slice from `offset_bytes` on of the range that is sent to or received from
  /// a rank. `slot`: memory for it, if the range is in host memory.
  void AddSend(int peer, const MemoryRange& range, uint64_t offset_bytes, std::byte* slot,
               Step& step) const;
  void AddReceive(int peer, const MemoryRange& range, uint64_t offset_bytes, std::byte* slot,
                  Step& step) const;

  const int device_;
  const uint64_t buffer_bytes_;
  const std::optional<cudaStream_t> follows_;
  std::byte* memory_ = nullptr;  // kAlignmentBytes for barriers, then the halves
  uint64_t half_bytes_ = 0;      // room for a slice to send to, and one from, every other rank
  uint64_t slice_bytes_ = 0;
  bool frees_in_background_ = false;
  Stream moves_;  // the stream of NCCL
  Stream copies_;
  Event caller_;  // the work that the caller's stream contained
  Event staged_;  // the copies of the step that is launched
  std::array<Event, kHalves> moved_;
};

}  // namespace cairn::cuda::internal
