// Points in time: local times, and how long ago.

#include "tools/common/timestamps.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <ctime>

#include "tools/common/quantities.h"

namespace cairn::tools {
namespace {

std::tm Local(int64_t unix_ns) {
  // Rounds down, so that times before 1970 are not a second late.
  std::time_t seconds = unix_ns / 1'000'000'000;
  if (unix_ns % 1'000'000'000 < 0) --seconds;
  std::tm local{};
  localtime_r(&seconds, &local);
  return local;
}

}  // namespace

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
