#pragma once
/// Fixed-width integers of foreign formats, which are all little-endian.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace cairn::core::internal {

/// The first sizeof(Integer) bytes. Requires that there are as many.
template <typename Integer>
Integer ReadLittle(std::span<const std::byte> bytes) {
  uint64_t value = 0;
  for (size_t i = sizeof(Integer); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return static_cast<Integer>(value);
}

template <typename Integer>
void AppendLittle(std::string& out, Integer value) {
  for (size_t i = 0; i < sizeof(Integer); ++i) {
    out.push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i)));
  }
}

}  // namespace cairn::core::internal
