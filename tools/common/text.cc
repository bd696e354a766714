// Names and other text from a store, made safe for terminals, tables, shells and JSON.

#include "tools/common/text.h"

#include <fmt/format.h>
#include <wchar.h>

#include <algorithm>
#include <iterator>

#include "core/base/hint_text.h"
#include "core/base/utf8.h"

namespace cairn::tools {
namespace {

/// Removes the code point at the front of `text` and returns it, or nothing if the text does not
/// start with strict UTF-8, which encodes no surrogates.
std::optional<uint32_t> TakeCodePoint(std::string_view& text) {
  const std::optional<core::CodePoint> decoded = core::DecodeUtf8(text);
  if (!decoded || core::IsSurrogate(decoded->value)) return std::nullopt;
  text.remove_prefix(decoded->length_bytes);
  return decoded->value;
}

/// True for characters that move the cursor, break a line or change the writing direction.
bool Disturbs(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x200b && code <= 0x200f) ||
         (code >= 0x2028 && code <= 0x202e) || (code >= 0x2060 && code <= 0x206f) || code == 0xfeff;
}

/// What follows a backslash in an FQN (core/state_dict/key_name.h).
constexpr std::string_view kFqnEscapes = "\\.IBNF";

/// Returns whether `text` is printable ASCII, as nearly all names are.
bool IsPrintableAscii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= 0x20 && c < 0x7f; });
}

}  // namespace

std::string ShapeText(std::span<const uint64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string EscapeText(std::string_view text) {
  if (IsPrintableAscii(text) && !text.contains('\\')) return std::string(text);
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::string_view before = text;
    const auto code = TakeCodePoint(text);
    if (!code) {
      out += fmt::format("\\x{:02x}", static_cast<uint8_t>(text[0]));
      text.remove_prefix(1);
    } else if (*code == '\\' && !text.empty() && kFqnEscapes.contains(text.front())) {
      out += {'\\', text.front()};
      text.remove_prefix(1);
    } else if (*code == '\\') {
      out += "\\\\";
    } else if (*code == '\n') {
      out += "\\n";
    } else if (*code == '\t') {
      out += "\\t";
    } else if (*code == '\r') {
      out += "\\r";
    } else if (!Disturbs(*code)) {
      out += before.substr(0, before.size() - text.size());
    } else if (*code < 0x80) {
      out += fmt::format("\\x{:02x}", *code);
    } else {
      out += fmt::format("\\u{{{:x}}}", *code);
    }
  }
  return out;
}

std::string HexText(std::span<const std::byte> bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const std::byte byte : bytes) fmt::format_to(std::back_inserter(out), "{:02x}", byte);
  return out;
}

std::string ShellWord(std::string_view text) { return core::ShellWord(EscapeText(text)); }

std::string JsonText(std::string_view text) {
  if (IsPrintableAscii(text)) return std::string(text);
  std::string_view rest = text;
  while (!rest.empty()) {
    if (!TakeCodePoint(rest)) return EscapeText(text);
  }
  return std::string(text);
}

uint32_t DisplayColumns(std::string_view text) {
  if (IsPrintableAscii(text)) return static_cast<uint32_t>(text.size());
  uint32_t columns = 0;
  while (!text.empty()) {
    const auto code = TakeCodePoint(text);
    if (!code) {
      text.remove_prefix(1);
      ++columns;
      continue;
    }
    // Negative for characters that the locale does not know; one column is the best guess.
    const int width = *code < 0x80 ? 1 : wcwidth(static_cast<wchar_t>(*code));
    columns += width < 0 ? 1 : static_cast<uint32_t>(width);
  }
  return columns;
}

std::string_view FirstBytes(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  const auto is_continuation = [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
  };
  while (max_bytes > 0 && is_continuation(text[max_bytes])) --max_bytes;
  return text.substr(0, max_bytes);
}

char LowerAscii(char letter) {
  return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

std::string CutMiddle(std::string_view text, uint32_t limit,
                      uint32_t (*measure)(std::string_view)) {
  uint32_t left = measure(text);
  if (left <= limit) return std::string(text);
  // Two fifths for the start: the end of an FQN (".attn.wq.weight") is more specific.
  uint32_t head_left = (limit - 1) * 2 / 5;
  const uint32_t tail = limit - 1 - head_left;
  std::string head;
  while (left > tail) {
    std::string_view rest = text;
    if (!TakeCodePoint(rest)) rest.remove_prefix(1);
    const std::string_view character = text.substr(0, text.size() - rest.size());
    const uint32_t size = measure(character);
    if (size <= head_left) head += character;
    head_left = size <= head_left ? head_left - size : 0;
    left -= size;
    text = rest;
  }
  return fmt::format("{}…{}", head, text);
}

}  // namespace cairn::tools
