#pragma once
// SPDX-License-Identifier: Apache-2.0
/// The reports and the default buffer size of collectives on state dicts.

#include <cstdint>

namespace cairn::core {

/// What one call moved on this rank.
struct TransferReport {
  uint64_t sent_bytes = 0;         // tensor bytes that it sent, also to itself
  uint64_t received_bytes = 0;     // tensor bytes from other ranks
  uint64_t peak_buffer_bytes = 0;  // the most that was in buffers at one time
  uint64_t round_count = 0;        // calls of the communicator that sent tensors
};

inline constexpr uint64_t kDefaultBufferBytes = 64 << 20;

}  // namespace cairn::core
