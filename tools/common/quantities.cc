// Amounts and points in time in words.

#include "tools/common/quantities.h"

#include <fmt/chrono.h>
#include <fmt/compile.h>
#include <fmt/format.h>

#include <array>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cmath>
#include <ctime>
#include <system_error>

#include "tools/common/text.h"

namespace cairn::tools {
namespace {

std::string ThreeDigits(double value, std::string_view unit) {
  // At these bounds rounding would produce a fourth digit.
  if (value < 9.995) return fmt::format("{:.2f} {}", value, unit);
  if (value < 99.95) return fmt::format("{:.1f} {}", value, unit);
  return fmt::format("{:.0f} {}", value, unit);
}

std::tm Local(int64_t unix_ns) {
  // Rounds down, so that times before 1970 are not a second late.
  std::time_t seconds = unix_ns / 1'000'000'000;
  if (unix_ns % 1'000'000'000 < 0) --seconds;
  std::tm local{};
  localtime_r(&seconds, &local);
  return local;
}

}  // namespace

std::string HumanBytes(uint64_t bytes) {
  if (bytes < 1024) return fmt::format(FMT_COMPILE("{} B"), bytes);
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

Result<uint64_t> ParseBytes(std::string_view text) {
  const auto refuse = [&] {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("'{}' is not a size; write 65536, 512M, 1.5GiB or 5GB", EscapeText(text)));
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
  // Above 2^53 a double cannot represent every byte count, and no machine has that much memory.
  if (bytes > 9007199254740992.0) return refuse();
  return static_cast<uint64_t>(bytes);
}

std::string LocalTime(int64_t unix_ns) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", Local(unix_ns));
}

std::string IsoTime(int64_t unix_ns) {
  std::string iso = fmt::format("{:%Y-%m-%dT%H:%M:%S%z}", Local(unix_ns));
  return iso.insert(iso.size() - 2, ":");  // %z is +0100; the extended form of ISO 8601 is +01:00
}

std::string Age(int64_t unix_ns, int64_t now_unix_ns) {
  // The clock of another machine may be slightly ahead.
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

}  // namespace cairn::tools
