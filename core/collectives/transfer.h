#pragma once
/// What state-dict collectives have in common: buffers and reports.

#include <cstdint>

namespace cairn::core {

/// What one call moved, on this rank.
struct TransferReport {
  uint64_t sent_bytes = 0;         // of tensors, for others and once for itself
  uint64_t received_bytes = 0;     // of tensors, from other ranks
  uint64_t peak_buffer_bytes = 0;  // most that was in buffers at one time
  uint64_t round_count = 0;        // calls of the communicator that moved tensors
};

inline constexpr uint64_t kDefaultBufferBytes = 64 << 20;

}  // namespace cairn::core
