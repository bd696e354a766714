#pragma once
/// Points in time: local times, and how long ago.

#include <cstdint>
#include <string>

namespace cairn::tools {

/// Local time, ISO 8601: "2026-03-01 12:00:05".
std::string LocalTime(int64_t unix_ns);
/// Local time with its zone, for JSON: "2026-03-01T12:00:05+01:00".
std::string IsoTime(int64_t unix_ns);
/// "just now", "12 s ago", "3 min ago", "5 h ago", "12 days ago", "in the future".
std::string Age(int64_t unix_ns, int64_t now_unix_ns);
int64_t NowUnixNs();

}  // namespace cairn::tools
