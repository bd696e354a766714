#pragma once
// SPDX-License-Identifier: Apache-2.0
/// UTF-8 as Python's "surrogatepass" error handler reads it: surrogates, which Python strings may
/// contain, are accepted as three bytes. Overlong forms and values above U+10FFFF are not.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace cairn::core {

struct CodePoint {
  uint32_t value = 0;
  uint32_t length_bytes = 0;
};

/// Returns the code point at the start of `text`, or nothing if `text` is empty or does not start
/// with UTF-8.
constexpr std::optional<CodePoint> DecodeUtf8(std::string_view text) {
  if (text.empty()) return std::nullopt;
  const auto first = static_cast<uint8_t>(text[0]);
  if (first < 0x80) return CodePoint{first, 1};
  if (first < 0xc2 || first >= 0xf5) return std::nullopt;
  const uint32_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (length > text.size()) return std::nullopt;
  uint32_t value = first & (0x7fu >> length);
  for (uint32_t i = 1; i < length; ++i) {
    const auto next = static_cast<uint8_t>(text[i]);
    if ((next & 0xc0) != 0x80) return std::nullopt;
    value = value << 6 | (next & 0x3fu);
  }
  const uint32_t smallest = length == 2 ? 0x80 : length == 3 ? 0x800 : 0x10000;
  if (value < smallest || value > 0x10ffff) return std::nullopt;
  return CodePoint{value, length};
}

/// True for U+D800 to U+DFFF, which strict UTF-8 does not encode.
constexpr bool IsSurrogate(uint32_t code_point) {
  return code_point >= 0xd800 && code_point < 0xe000;
}

}  // namespace cairn::core
