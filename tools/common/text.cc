// Numbers, times and names as people read them.

#include "tools/common/text.h"

#include <fmt/format.h>
#include <wchar.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cmath>
#include <ctime>
#include <optional>

namespace cairn::tools::internal {
namespace {

/// Decodes one UTF-8 code point at the front of `text` and takes it off; nothing if there is none.
std::optional<uint32_t> TakeCodePoint(std::string_view& text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  size_t length = 1;
  uint32_t code = first;
  uint32_t smallest = 0;
  if (first >= 0xf0 && first < 0xf5) {
    length = 4, code = first & 0x07, smallest = 0x10000;
  } else if (first >= 0xe0) {
    length = 3, code = first & 0x0f, smallest = 0x800;
  } else if (first >= 0xc2) {
    length = 2, code = first & 0x1f, smallest = 0x80;
  } else if (first >= 0x80) {
    return std::nullopt;
  }
  if (first >= 0xf5 || text.size() < length) return std::nullopt;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return std::nullopt;
    code = (code << 6) | (byte(i) & 0x3f);
  }
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  if (code < smallest || surrogate || code > 0x10ffff) return std::nullopt;
  text.remove_prefix(length);
  return code;
}

/// Characters that move the cursor, break a line or turn the writing direction.
bool Disturbs(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x200b && code <= 0x200f) ||
         (code >= 0x2028 && code <= 0x202e) || (code >= 0x2060 && code <= 0x206f) || code == 0xfeff;
}

std::string ThreeDigits(double value, std::string_view unit) {
  // The bounds lie where rounding would show a fourth digit.
  if (value < 9.995) return fmt::format("{:.2f} {}", value, unit);
  if (value < 99.95) return fmt::format("{:.1f} {}", value, unit);
  return fmt::format("{:.0f} {}", value, unit);
}

std::tm Local(int64_t unix_ns) {
  // Floor, so that times before 1970 do not land a second late.
  std::time_t seconds = unix_ns / 1'000'000'000;
  if (unix_ns % 1'000'000'000 < 0) --seconds;
  std::tm local{};
  localtime_r(&seconds, &local);
  return local;
}

}  // namespace

std::string HumanBytes(uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  static constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1023.5 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return ThreeDigits(value, kUnits[unit]);
}

std::string HumanRate(uint64_t bytes, double seconds) {
  if (!(seconds > 0)) return "-";
  const double rate = static_cast<double>(bytes) / seconds;
  return HumanBytes(rate < 1e18 ? static_cast<uint64_t>(rate) : uint64_t{1} << 60) + "/s";
}

std::string GroupedCount(uint64_t count) {
  const std::string digits = fmt::to_string(count);
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped += ',';
    grouped += digits[i];
  }
  return grouped;
}

std::string HumanSeconds(double seconds) {
  if (seconds < 0.9995e-3) return ThreeDigits(seconds * 1e6, "us");
  if (seconds < 0.9995) return ThreeDigits(seconds * 1e3, "ms");
  if (seconds < 119.5) return ThreeDigits(seconds, "s");
  const auto whole = static_cast<uint64_t>(seconds + 0.5);
  if (whole < 7200) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

std::string Percent(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  const double percent = 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  if (part < whole && percent >= 99.95) return ">99.9 %";
  if (part > 0 && percent < 0.05) return "<0.1 %";
  return fmt::format("{:.1f} %", percent);
}

std::string Plural(uint64_t count, std::string_view noun) {
  return Plural(count, noun, fmt::format("{}s", noun));
}

std::string Plural(uint64_t count, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", GroupedCount(count), count == 1 ? one : many);
}

std::string LocalTime(int64_t unix_ns) {
  const std::tm local = Local(unix_ns);
  std::array<char, 64> text{};
  const size_t length = std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &local);
  return std::string(text.data(), length);
}

std::string IsoTime(int64_t unix_ns) {
  const std::tm local = Local(unix_ns);
  std::array<char, 64> text{};
  const size_t length = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S%z", &local);
  const std::string_view iso(text.data(), length);
  if (iso.size() < 2) return std::string(iso);
  // strftime writes +0100, ISO 8601's extended form wants +01:00.
  return fmt::format("{}:{}", iso.substr(0, iso.size() - 2), iso.substr(iso.size() - 2));
}

std::string Age(int64_t unix_ns, int64_t now_unix_ns) {
  // A clock that runs a little ahead on another machine is no news.
  const double seconds = (static_cast<double>(now_unix_ns) - static_cast<double>(unix_ns)) * 1e-9;
  if (seconds < -60) return "in the future";
  if (seconds < 5) return "just now";
  const auto whole = static_cast<uint64_t>(seconds);
  if (whole < 120) return fmt::format("{} s ago", whole);
  if (whole < 120 * 60) return fmt::format("{} min ago", whole / 60);
  if (whole < 48 * 3600) return fmt::format("{} h ago", whole / 3600);
  return fmt::format("{} days ago", GroupedCount(whole / 86400));
}

int64_t NowUnixNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string ShapeText(std::span<const uint64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string EscapeText(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::string_view before = text;
    const auto code = TakeCodePoint(text);
    if (!code) {
      out += fmt::format("\\x{:02x}", static_cast<uint8_t>(text[0]));
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

std::string ShellWord(std::string_view text) {
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) || std::string_view("/._-+:@,=%").find(c) != std::string_view::npos;
  });
  if (plain) return std::string(text);
  std::string quoted = "'";
  for (const char c : EscapeText(text)) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::string JsonText(std::string_view text) {
  std::string_view rest = text;
  while (!rest.empty()) {
    if (!TakeCodePoint(rest)) return EscapeText(text);
  }
  return std::string(text);
}

uint32_t DisplayColumns(std::string_view text) {
  uint32_t columns = 0;
  while (!text.empty()) {
    const auto code = TakeCodePoint(text);
    if (!code) {
      text.remove_prefix(1);
      ++columns;
      continue;
    }
    // Negative for characters that the locale does not know; one column is the best guess then.
    const int width = *code < 0x80 ? 1 : wcwidth(static_cast<wchar_t>(*code));
    columns += width < 0 ? 1 : static_cast<uint32_t>(width);
  }
  return columns;
}

std::string CutMiddle(std::string_view text, uint32_t columns) {
  if (DisplayColumns(text) <= columns) return std::string(text);
  // A leading share of two fifths: the end of an FQN (".attn.wq.weight") tells more than its start.
  const uint32_t head_columns = (columns - 1) * 2 / 5;
  const uint32_t tail_columns = columns - 1 - head_columns;
  std::string_view rest = text;
  uint32_t used = 0;
  while (!rest.empty()) {
    std::string_view next = rest;
    if (!TakeCodePoint(next)) next.remove_prefix(1);
    const uint32_t width = DisplayColumns(rest.substr(0, rest.size() - next.size()));
    if (used + width > head_columns) break;
    used += width;
    rest = next;
  }
  const std::string_view head = text.substr(0, text.size() - rest.size());
  while (DisplayColumns(rest) > tail_columns) {
    std::string_view next = rest;
    if (!TakeCodePoint(next)) next.remove_prefix(1);
    rest = next;
  }
  return fmt::format("{}…{}", head, rest);
}

Result<uint64_t> ParseBytes(std::string_view text) {
  const auto refuse = [&] {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("'{}' is no size; write 65536, 512M, 1.5GiB or 5GB", EscapeText(text)));
  };
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !(number >= 0)) return refuse();
  std::string unit;
  for (const char c : std::string_view(end, text.data() + text.size() - end)) {
    if (c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  static constexpr std::string_view kPrefixes = "kmgtp";
  double factor = 1;
  if (!unit.empty() && unit != "b") {
    const size_t power = kPrefixes.find(unit[0]);
    const std::string_view rest = std::string_view(unit).substr(1);
    if (power == std::string_view::npos || (!rest.empty() && rest != "b" && rest != "ib")) {
      return refuse();
    }
    factor = std::pow(rest == "b" ? 1000.0 : 1024.0, static_cast<double>(power + 1));
  }
  const double bytes = std::floor(number * factor);
  // Above 2^53 a double no longer counts single bytes, and no machine holds as much.
  if (bytes > 9007199254740992.0) return refuse();
  return static_cast<uint64_t>(bytes);
}

}  // namespace cairn::tools::internal
