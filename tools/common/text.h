#pragma once
/// Numbers, times and names as people read them.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kv/error.h"

namespace cairn::tools::internal {

/// "0 B", "1023 B", "1.50 KiB", "12.3 MiB", "512 GiB": three digits that count.
std::string HumanBytes(uint64_t bytes);
/// As HumanBytes, a second; "-" when no time was measured.
std::string HumanRate(uint64_t bytes, double seconds);
/// "1,234,567".
std::string GroupedCount(uint64_t count);
/// "850 us", "12.3 ms", "4.56 s", "3 min 20 s", "2 h 5 min".
std::string HumanSeconds(double seconds);
/// "12.5 %"; "-" if `whole` is 0. Never "100.0 %" or "0.0 %" unless it is so.
std::string Percent(uint64_t part, uint64_t whole);

/// "1 step", "2 steps", "1,024 steps".
std::string Plural(uint64_t count, std::string_view noun);
std::string Plural(uint64_t count, std::string_view one, std::string_view many);

/// Local time, ISO 8601: "2026-03-01 12:00:05".
std::string LocalTime(int64_t unix_ns);
/// Local time with its zone, for JSON: "2026-03-01T12:00:05+01:00".
std::string IsoTime(int64_t unix_ns);
/// "just now", "12 s ago", "3 min ago", "5 h ago", "12 days ago", "in the future".
std::string Age(int64_t unix_ns, int64_t now_unix_ns);
int64_t NowUnixNs();

/// Elements a dimension: "[4, 768]"; "[]" for a scalar.
std::string ShapeText(std::span<const uint64_t> shape);

/// Text that cannot disturb a terminal or a table: control characters, line separators, direction
/// overrides and bytes that are no UTF-8 become \n, \t, \x1b, \u{202e}; a backslash is doubled.
std::string EscapeText(std::string_view text);
/// `text` as one word of a shell's command line: quoted where it needs it.
std::string ShellWord(std::string_view text);
/// As it is if it is UTF-8, else escaped: what a JSON string can hold.
std::string JsonText(std::string_view text);
/// Columns that `text` takes on a terminal.
uint32_t DisplayColumns(std::string_view text);
/// Cuts out the middle so that at most `columns` (>= 8) are taken; both ends of an FQN tell most.
std::string CutMiddle(std::string_view text, uint32_t columns);

/// "4GiB", "512M", "1.5 GB", "65536": K, M, G, T are powers of 1024; KB, MB, GB, TB of 1000.
/// kInvalidArgument: anything else.
Result<uint64_t> ParseBytes(std::string_view text);

}  // namespace cairn::tools::internal
