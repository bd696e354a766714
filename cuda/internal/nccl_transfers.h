#pragma once
/// Byte ranges through NCCL, wherever they lie: device memory in place, host memory through device
/// buffers of bounded length.
///
/// A call is a row of steps. Each step copies what it sends from host memory into one half of the
/// buffers, lets NCCL move it, and copies what came from there to host memory; the halves take
/// turns, so that copies of one step run beside NCCL's of the next. NCCL works on one stream, the
/// copies go on another, for two reasons:
///   - A copy from or to pageable memory holds the host until all that its stream held before it is
///     done. Behind NCCL it would wait for other ranks, past any deadline. So copies out are only
///     begun once NCCL is done with the step, which the host asks for, with a deadline.
///   - A call that fails leaves nothing in flight to memory of the caller's: NCCL is aborted, and
///     the copies depend on nobody.

#include <cuda_runtime_api.h>

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/ranks/communicator.h"
#include "cuda/internal/chunk_schedule.h"
#include "cuda/internal/nccl_handle.h"
#include "cuda/internal/stream.h"
#include "kv/error.h"

namespace cairn::cuda::internal {

/// Memory that is sent from or received into. What is sent is only read.
struct MemoryRange {
  std::byte* data = nullptr;
  uint64_t length_bytes = 0;
  bool on_device = false;
};

/// Streams and buffers of one communicator.
///
/// Ownership: borrows the stream that it follows. Threads: one call at a time; the device is
/// current in every call but Locate. Errors of calls leave NCCL to be aborted, and `Drain` to be
/// called.
class NcclTransfers {
 public:
  /// Takes `buffer_bytes` of device memory, all that it ever takes. The work of a call with ranges
  /// in device memory comes after all that `follows`, if given, holds when the call begins.
  /// Requires kMinBufferBytes. kResourceExhausted: no device memory.
  static Result<std::unique_ptr<NcclTransfers>> Make(int device, int world_size,
                                                     uint64_t buffer_bytes,
                                                     std::optional<cudaStream_t> follows);
  static constexpr uint64_t kMinBufferBytes = 64 << 10;
  ~NcclTransfers();
  NcclTransfers(const NcclTransfers&) = delete;
  NcclTransfers& operator=(const NcclTransfers&) = delete;

  int device() const { return device_; }
  uint64_t buffer_bytes() const { return buffer_bytes_; }
  std::optional<cudaStream_t> follows() const { return follows_; }

  /// Memory that CUDA does not know is the host's. kInvalidArgument: of another device.
  Result<MemoryRange> Locate(core::ByteView bytes) const;

  /// All return once the work is done on this rank.
  Result<void> Barrier(NcclHandle& nccl, Deadline deadline);
  Result<void> Broadcast(NcclHandle& nccl, int rank, int root, const MemoryRange& bytes,
                         Deadline deadline);
  /// `sent[i]` goes to rank i, `received[i]` comes from it; the own ones are copied.
  Result<void> Exchange(NcclHandle& nccl, int rank, std::span<const MemoryRange> sent,
                        std::span<const MemoryRange> received, Deadline deadline);

  /// From here on the destructor waits for a busy device for a second only, and leaves the rest to
  /// the background: cudaFree waits for all that the device runs, others' work too.
  void FreeInBackground() { frees_in_background_ = true; }

  /// After an abort: waits until nothing of ours runs on the device any more, up to `deadline`.
  void Drain(Deadline deadline) noexcept;

 private:
  /// One copy, and one call of NCCL.
  struct Copy {
    std::byte* target = nullptr;
    const std::byte* source = nullptr;
    uint64_t length_bytes = 0;
  };
  struct Operation {
    enum class Kind { kSend, kReceive, kBroadcast, kReduceOne };
    Kind kind = Kind::kSend;
    std::byte* data = nullptr;
    uint64_t length_bytes = 0;
    int peer = 0;  // the root of a broadcast
  };
  struct Step {
    std::vector<Copy> in;
    std::vector<Operation> operations;
    std::vector<Copy> out;

    void Clear();
  };

  NcclTransfers(int device, uint64_t buffer_bytes, std::optional<cudaStream_t> follows)
      : device_(device), buffer_bytes_(buffer_bytes), follows_(follows) {}

  /// Runs `next(step, half)` until it says that there is none.
  template <typename Next>
  Result<void> RunSteps(NcclHandle& nccl, Deadline deadline, const Next& next);
  Result<void> Launch(NcclHandle& nccl, const Step& step, Deadline deadline) const;
  static ncclResult_t Enqueue(NcclHandle& nccl, const Operation& operation, cudaStream_t stream);
  Result<void> StartCopies(std::span<const Copy> copies) const;
  Result<void> WaitFor(const NcclHandle& nccl, const Event& event, Deadline deadline) const;
  Result<void> FollowCaller(std::span<const MemoryRange> sent,
                            std::span<const MemoryRange> received) const;

  /// The pieces of a round as a step.
  void AddSend(const Piece& piece, const MemoryRange& range, std::byte* half, Step& step) const;
  void AddReceive(const Piece& piece, const MemoryRange& range, std::byte* half, Step& step) const;

  const int device_;
  const uint64_t buffer_bytes_;
  const std::optional<cudaStream_t> follows_;
  ChunkLayout layout_;           // of `slots_`
  std::byte* memory_ = nullptr;  // one element for barriers, then the slots
  std::byte* slots_ = nullptr;
  bool frees_in_background_ = false;
  Stream moves_;  // NCCL's
  Stream copies_;
  Event caller_;  // what the caller's stream held
  Event staged_;  // copies of the step that is launched
  std::array<Event, ChunkLayout::kHalves> moved_;
};

}  // namespace cairn::cuda::internal
