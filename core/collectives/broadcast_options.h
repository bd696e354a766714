#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Options of a broadcast, or a distribution, of a full state dict.

#include <cstdint>
#include <vector>

#include "core/device/device.h"
#include "core/ranks/communicator.h"

namespace cairn::core {

/// The bytes that one call moved on this rank.
struct TransferReport {
  uint64_t sent_bytes = 0;         // tensor bytes that it sent, also to itself
  uint64_t received_bytes = 0;     // tensor bytes from other ranks
  uint64_t peak_buffer_bytes = 0;  // the most that was in buffers at one time
  uint64_t round_count = 0;        // calls of the communicator that sent tensors
};

inline constexpr uint64_t kDefaultBufferBytes = 64 << 20;

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
