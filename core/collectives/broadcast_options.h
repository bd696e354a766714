#pragma once
/// What a broadcast, or a distribution, of a whole state dict is asked.

#include <cstdint>
#include <vector>

#include "core/collectives/transfer.h"
#include "core/device/device.h"
#include "core/device/host_memory.h"
#include "core/ranks/communicator.h"

namespace cairn::core {

struct BroadcastOptions {
  /// Leave out of the result what the full state lacks; else it stays as it is in the target.
  bool strict = false;
  /// Give every tensor of the full state memory of the result's, and leave the target's alone.
  bool cpu_offload = false;
  /// At least 4 a rank. Not used by DistributeStateDict.
  uint64_t buffer_bytes = kDefaultBufferBytes;
  HostMemoryOptions memory;                     // of the result
  Communicator* tensor_communicator = nullptr;  // null: the other one
  /// The caller's, on which tensors are made ready; the default stream of devices that none is of.
  std::vector<DeviceStream> streams;
  TransferReport* report = nullptr;  // filled if not null
};

}  // namespace cairn::core
