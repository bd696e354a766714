#pragma once
/// Copies between tensors and memory on the host or on devices.

#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "core/device/device.h"
#include "core/tensor/tensor.h"

namespace cairn::core::internal {

/// Makes `queue` wait for the streams in `streams` that belong to its device, or for the default
/// stream if none does. Returns the streams that it waits for.
Result<std::vector<DeviceStream>> WaitForStreams(DeviceQueue& queue,
                                                 std::span<const DeviceStream> streams);

/// One queue per device that an operation uses.
///
/// Ownership: owns the queues; the destructor waits for their work. Threads: one call at a time.
class DeviceQueues {
 public:
  /// No queues, for tensors in host memory only.
  DeviceQueues() = default;
  /// Opens the queues and returns once the devices have completed all work that `streams` contain
  /// now, so that their memory may then be accessed in any order. For a device without an entry in
  /// `streams`, this is the default stream. Returns the errors of FindDeviceBackend and OpenQueue.
  static Result<DeviceQueues> Open(const std::set<int>& devices,
                                   std::span<const DeviceStream> streams);

  bool Has(int device) const { return queues_.contains(device); }
  /// Requires Has(device).
  DeviceQueue& On(int device) const { return *queues_.at(device); }

  /// Copies bytes [begin_bytes, begin_bytes + memory.size()) of the row-major form of `source` to
  /// `memory`. Requires that `memory_device` is the host or the device of `source`. The copy may
  /// complete only with Await.
  Result<void> Read(const TensorView& source, uint64_t begin_bytes, std::span<std::byte> memory,
                    int memory_device) const;
  /// Copies `memory` to bytes [begin_bytes, begin_bytes + memory.size()) of the row-major form of
  /// `target`. Requires that `memory_device` is the host or the device of `target`, and that
  /// `memory` does not change until Await has returned.
  Result<void> Write(std::span<const std::byte> memory, int memory_device,
                     const TensorTarget& target, uint64_t begin_bytes) const;
  /// Copies a tensor to another one of the same dtype and shape, on any devices; through 4 MiB of
  /// host memory if no direct copy is possible. The copy may complete only with Await. Requires
  /// memory that does not overlap, except that both may be the same tensor.
  Result<void> Copy(const TensorView& source, const TensorTarget& target) const;

  /// Returns once all copies are complete.
  Result<void> Await() const;

 private:
  Result<void> CopyThroughHost(const TensorView& source, const TensorTarget& target,
                               uint64_t length_bytes) const;

  std::map<int, std::shared_ptr<DeviceQueue>> queues_;
};

}  // namespace cairn::core::internal
