#pragma once
/// What a round of a communicator sends and receives, wherever the tensors lie: in place where the
/// communicator takes their memory and the bytes lie in one run, else through bounded buffers.

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "core/ranks/communicator.h"
#include "core/device/device.h"
#include "core/device/host_memory.h"
#include "core/device/internal/device_queues.h"
#include "core/tensor/internal/tensor_stream.h"

namespace cairn::core::internal {

/// Memory for what does not go in place, handed out anew each round: host memory, and that of the
/// communicator's device where tensors lie there. Host memory is page-locked where devices copy
/// from and to it and the system lets it be.
///
/// Ownership: move-only; gives all back. Threads: as a vector.
class RoundBuffer {
 public:
  RoundBuffer() = default;
  /// `device` is kHostDevice, or has memory of its own; `devices` are those that copy.
  static Result<RoundBuffer> Make(uint64_t capacity_bytes, int device,
                                  const std::set<int>& devices);

  void Reset() { used_bytes_ = 0; }
  /// Requires that the round's takes fit, those on the device and those in host memory together:
  /// rounds are planned so.
  std::span<std::byte> Take(uint64_t count, int device);
  uint64_t peak_bytes() const { return peak_bytes_; }

 private:
  uint64_t capacity_bytes_ = 0;
  HostMemory memory_;  // unless it is pinned, pages that no round reaches are never there
  std::unique_ptr<DeviceMemory> on_device_;
  uint64_t used_bytes_ = 0;
  uint64_t peak_bytes_ = 0;
};

/// Threads: one at a time. A round: Begin; sources and targets; Packed; the communicator's call;
/// Unpack.
class RoundMover {
 public:
  RoundMover() = default;
  /// For tensors on `devices`, after what `streams` hold; borrows `communicator`. Errors as
  /// DeviceQueues::Open, and kResourceExhausted.
  static Result<RoundMover> Make(const Communicator& communicator, uint64_t buffer_bytes,
                                 const std::set<int>& devices,
                                 std::span<const DeviceStream> streams);

  const DeviceQueues& queues() const { return queues_; }
  uint64_t peak_bytes() const { return buffer_.peak_bytes(); }

  void Begin();
  /// Bytes [begin, begin + count) of a stream if the communicator can send them from where they
  /// lie. Requires count > 0.
  std::optional<ByteView> InPlace(const TensorStream<TensorView>& stream, uint64_t begin,
                                  uint64_t count) const;
  /// A copy of them in a buffer, filled once Packed returns.
  Result<ByteTarget> Pack(const TensorStream<TensorView>& stream, uint64_t begin, uint64_t count);
  /// In place or packed; empty for no bytes.
  Result<ByteView> Source(const TensorStream<TensorView>& stream, uint64_t begin, uint64_t count);
  /// Memory for bytes [begin, begin + count) of a stream, which stays as it is until Unpack.
  ByteTarget Target(const TensorStream<TensorTarget>& stream, uint64_t begin, uint64_t count);
  /// Buffers hold what they are to send.
  Result<void> Packed() const;
  /// Brings what buffers have received to where it belongs.
  Result<void> Unpack();

 private:
  struct Staged {
    const TensorStream<TensorTarget>* stream = nullptr;
    uint64_t begin = 0;
    ByteTarget bytes;
    int device = kHostDevice;
  };

  bool Takes(int device) const { return device == kHostDevice || device == communicator_device_; }
  /// Where bytes that tensors of `device` hold are buffered.
  int BufferDevice(int device) const { return Takes(device) ? device : kHostDevice; }

  int communicator_device_ = kHostDevice;
  RoundBuffer buffer_;  // freed behind the queues, whose work reads and writes it
  DeviceQueues queues_;
  std::vector<Staged> staged_;
};

}  // namespace cairn::core::internal
