#pragma once
/// Incompressible bytes that are the same in every run.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace cairn::bench {

/// Returns the output of Knuth's MMIX linear congruential generator. A remainder of less than 8
/// bytes is zero.
inline std::vector<std::byte> Noise(uint64_t size_bytes) {
  std::vector<std::byte> bytes(size_bytes);
  uint64_t state = 1;
  for (uint64_t i = 0; i + 8 <= size_bytes; i += 8) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(bytes.data() + i, &state, 8);
  }
  return bytes;
}

}  // namespace cairn::bench
