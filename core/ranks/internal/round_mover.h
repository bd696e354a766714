#pragma once
/// Provides the memory that a round of a communicator sends and receives: the tensors' own memory
/// if it is contiguous and the communicator accepts it, otherwise bounded buffers.

#include <memory>
#include <set>
#include <span>
#include <vector>

#include "core/device/device.h"
#include "core/device/internal/device_queues.h"
#include "core/ranks/communicator.h"
#include "core/tensor/internal/tensor_stream.h"

namespace cairn::core::internal {

/// Buffers for bytes that cannot be transferred in place, which each round uses again: host memory,
/// and memory of the communicator's device if tensors are on that device. Host memory is
/// page-locked if devices access it and the system allows it.
///
/// Ownership: move-only; owns the memory. Threads: one call at a time.
class RoundBuffer {
 public:
  RoundBuffer() = default;
  /// `device` is the device of the communicator, or kHostDevice; `devices` have the transferred
  /// tensors. kResourceExhausted: there is not enough memory.
  static Result<RoundBuffer> Make(uint64_t capacity_bytes, int device,
                                  const std::set<int>& devices);

  void Reset() { used_bytes_ = 0; }
  /// Returns the next `count` bytes on `device`. Requires that all bytes taken since Reset, on the
  /// device and on the host, fit into the capacity.
  std::span<std::byte> Take(uint64_t count, int device);

 private:
  uint64_t capacity_bytes_ = 0;
  HostMemory memory_;  // the system provides pages that are not pinned only when they are used
  DeviceMemory on_device_;
  uint64_t used_bytes_ = 0;
};

/// A round calls Begin, then Source, Pack and Target for each range, Packed, the communicator, and
/// Unpack. Threads: one call at a time.
class RoundMover {
 public:
  RoundMover() = default;
  /// For tensors on `devices`, whose memory is accessed after all work that `streams` contain now.
  /// Returns the errors of DeviceQueues::Open. kResourceExhausted: there is not enough memory.
  static Result<RoundMover> Make(const Communicator& communicator, uint64_t buffer_bytes,
                                 const std::set<int>& devices,
                                 std::span<const DeviceStream> streams);

  const DeviceQueues& queues() const { return queues_; }

  void Begin();
  /// Returns a buffer with a copy of the bytes, which is complete once Packed has returned.
  Result<ByteTarget> Pack(const TensorStream<TensorView>& stream, uint64_t begin, uint64_t count);
  /// Returns the bytes in place if possible, otherwise packed; an empty range if `count` is 0.
  Result<ByteView> Source(const TensorStream<TensorView>& stream, uint64_t begin, uint64_t count);
  /// Returns memory to receive bytes [begin, begin + count) of a stream. Requires that the stream
  /// does not change until Unpack has returned.
  ByteTarget Target(const TensorStream<TensorTarget>& stream, uint64_t begin, uint64_t count);
  /// Waits until all packed bytes are in their buffers.
  Result<void> Packed() const;
  /// Copies received bytes from buffers to their streams, and waits for the copies.
  Result<void> Unpack();

 private:
  struct Staged {
    const TensorStream<TensorTarget>* stream = nullptr;
    uint64_t begin = 0;
    ByteTarget bytes;
    int device = kHostDevice;
  };

  bool Accepts(int device) const { return device == kHostDevice || device == communicator_device_; }
  /// Returns the device of buffers for tensors on `device`.
  int BufferDevice(int device) const { return Accepts(device) ? device : kHostDevice; }

  int communicator_device_ = kHostDevice;
  RoundBuffer buffer_;  // destroyed after the queues, whose work accesses it
  DeviceQueues queues_;
  std::vector<Staged> staged_;
};

}  // namespace cairn::core::internal
