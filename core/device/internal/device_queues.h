#pragma once
/// Copies between tensors and memory that lie in host memory or on devices.

#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "core/device/device.h"
#include "core/tensor/tensor.h"

namespace cairn::core::internal {

/// Makes the queue run behind those of the caller's `streams` that are its device's, or behind the
/// default stream if none is; returns which they are.
Result<std::vector<DeviceStream>> WaitForStreams(DeviceQueue& queue,
                                                std::span<const DeviceStream> streams);

/// A queue for each device that one call works with.
///
/// Ownership: owns the queues; the destructor waits for what they hold. Threads: one at a time.
class DeviceQueues {
 public:
  /// None: for what is all in host memory.
  DeviceQueues() = default;
  /// Returns once the devices have done all that `streams` hold now, so that what comes from here
  /// on may be read and written in any order; the default stream stands for devices that `streams`
  /// does not name. Errors as FindDeviceBackend's and OpenQueue's.
  static Result<DeviceQueues> Open(const std::set<int>& devices,
                                  std::span<const DeviceStream> streams);

  bool Has(int device) const { return queues_.contains(device); }
  /// Requires Has.
  DeviceQueue& On(int device) const { return *queues_.at(device); }

  /// Bytes [begin, begin + memory.size()) of the row-major form of `source` to `memory`, which lies
  /// in host memory or on `source`'s own device. May be under way only when it returns: see Await.
  Result<void> Read(const TensorView& source, uint64_t begin_bytes, std::span<std::byte> memory,
                    int memory_device) const;
  /// The other way round, with the same places. `memory` stays as it is until Await has returned.
  Result<void> Write(std::span<const std::byte> memory, int memory_device,
                     const TensorTarget& target, uint64_t begin_bytes) const;
  /// As CopyTensor, wherever the tensors lie; through 4 MiB of host memory where there is no
  /// direct way. May be under way when it returns.
  Result<void> Copy(const TensorView& source, const TensorTarget& target) const;

  /// Returns once all that was begun is done.
  Result<void> Await() const;

 private:
  Result<void> CopyThroughHost(const TensorView& source, const TensorTarget& target,
                               uint64_t length_bytes) const;

  std::map<int, std::shared_ptr<DeviceQueue>> queues_;
};

}  // namespace cairn::core::internal
