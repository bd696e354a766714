#pragma once
/// Names and other text from a store, made safe for terminals, tables, shells and JSON.

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

namespace cairn::tools {

/// Elements per dimension: "[4, 768]"; "[]" for a scalar.
std::string ShapeText(std::span<const uint64_t> shape);

/// Text that cannot disturb a terminal or a table: control characters, line separators, direction
/// overrides and bytes that are not UTF-8 become \n, \t, \x1b, \u{202e}; backslashes are doubled,
/// except for those of the escapes in FQNs, which remain as they are.
std::string EscapeText(std::string_view text);
/// Two digits per byte.
std::string HexText(std::span<const std::byte> bytes);
/// `text` as one word of a shell's command line: quoted if necessary.
std::string ShellWord(std::string_view text);
/// A valid JSON string: `text` if it is UTF-8, otherwise EscapeText of it.
std::string JsonText(std::string_view text);
/// Returns the first bytes of UTF-8, at most `max_bytes`, without a part of a character.
std::string_view FirstBytes(std::string_view text, size_t max_bytes);
/// Returns an ASCII letter in lower case, and any other byte unchanged.
char LowerAscii(char letter);
/// Removes spaces and tabs at both ends.
std::string_view Trim(std::string_view text);
/// Returns the number that is all of `text`, as std::from_chars reads it; nothing if it is none, or
/// out of range.
template <typename Number>
std::optional<Number> ParseWhole(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return number;
}
/// Columns that `text` takes on a terminal.
uint32_t DisplayColumns(std::string_view text);
/// Removes the middle, so that the result measures at most `limit` (>= 8): columns, or what
/// `measure` returns, which adds up over characters. Both ends remain because they distinguish FQNs
/// best.
std::string CutMiddle(std::string_view text, uint32_t limit,
                      uint32_t (*measure)(std::string_view) = DisplayColumns);

}  // namespace cairn::tools
