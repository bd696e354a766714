#pragma once
/// Amounts and points in time in words: bytes, rates, durations, counts, local times.

#include <cstdint>
#include <string>
#include <string_view>

#include "kv/base/error.h"

namespace cairn::tools {

/// Three significant digits: "0 B", "1023 B", "1.50 KiB", "12.3 MiB", "512 GiB".
std::string HumanBytes(uint64_t bytes);
/// Bytes per second, "1.50 GiB/s"; "-" if no time was measured.
std::string HumanRate(uint64_t bytes, double seconds);
/// "1,234,567".
std::string GroupedCount(uint64_t count);
/// "850 us", "12.3 ms", "4.56 s", "3 min 20 s", "2 h 5 min".
std::string HumanSeconds(double seconds);
/// "12.5 %"; "-" if `whole` is 0. "100.0 %" and "0.0 %" only if the share is exactly that.
std::string Percent(uint64_t part, uint64_t whole);

/// "1 step", "2 steps", "1,024 steps".
std::string Plural(uint64_t count, std::string_view noun);
std::string Plural(uint64_t count, std::string_view one, std::string_view many);

/// Parses "4GiB", "512M", "1.5 GB", "65536". K, M, G, T, P are powers of 1024, as are KiB, MiB,
/// ...; KB, MB, GB, ... are powers of 1000. kInvalidArgument: anything else.
Result<uint64_t> ParseBytes(std::string_view text);

/// Local time, ISO 8601: "2026-03-01 12:00:05".
std::string LocalTime(int64_t unix_ns);
/// Local time with its zone, for JSON: "2026-03-01T12:00:05+01:00".
std::string IsoTime(int64_t unix_ns);
/// "just now", "12 s ago", "3 min ago", "5 h ago", "12 days ago", "in the future".
std::string Age(int64_t unix_ns, int64_t now_unix_ns);
int64_t NowUnixNs();

}  // namespace cairn::tools
