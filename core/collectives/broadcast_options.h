#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Options of a broadcast, or a distribution, of a full state dict.

#include <cstdint>
#include <vector>

#include "core/collectives/transfer_report.h"
#include "core/device/device.h"
#include "core/device/host_memory.h"
#include "core/ranks/communicator.h"

namespace cairn::core {

struct BroadcastOptions {
  /// Omit leaves from the result that the full state lacks. Otherwise they remain as in the target.
  bool strict = false;
  /// Allocate memory for every tensor that the full state fills, and do not write to the target.
  bool cpu_offload = false;
  /// At least 4 bytes per rank. DistributeStateDict does not use it.
  uint64_t buffer_bytes = kDefaultBufferBytes;
  HostMemoryOptions memory;                     // for the result
  Communicator* tensor_communicator = nullptr;  // null: the communicator of the call
  /// Streams of the caller on which tensors are computed; for a device without an entry, its
  /// default stream.
  std::vector<DeviceStream> streams;
  TransferReport* report = nullptr;  // filled if not null
};

}  // namespace cairn::core
