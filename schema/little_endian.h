#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Fixed-width little-endian integers, the only integers that our formats and the formats that we
/// import and export store in binary.
///
/// Callers check lengths against the format before they read; no function here checks a bound.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn::schema {

/// Reads an integer. Requires `offset_bytes + sizeof(Integer) <= bytes.size()`.
template <std::integral Integer>
constexpr Integer GetLittleEndian(std::span<const std::byte> bytes, size_t offset_bytes = 0) {
  const auto source = bytes.subspan(offset_bytes, sizeof(Integer));
  uint64_t value = 0;
  for (size_t i = sizeof(Integer); i-- > 0;) value = value << 8 | static_cast<uint8_t>(source[i]);
  return static_cast<Integer>(value);
}

/// Writes an integer. Requires `offset_bytes + sizeof(Integer) <= out.size()`.
template <std::integral Integer>
constexpr void PutLittleEndian(std::span<std::byte> out, size_t offset_bytes, Integer value) {
  const auto target = out.subspan(offset_bytes, sizeof(Integer));
  for (size_t i = 0; i < sizeof(Integer); ++i) {
    target[i] = static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i));
  }
}

/// Appends an integer to a container of bytes: a std::string, or a vector of bytes or uint8_t.
template <std::integral Integer, typename Container>
constexpr void AppendLittleEndian(Container& out, Integer value) {
  for (size_t i = 0; i < sizeof(Integer); ++i) {
    out.push_back(
        static_cast<typename Container::value_type>(static_cast<uint64_t>(value) >> (8 * i)));
  }
}

}  // namespace cairn::schema
