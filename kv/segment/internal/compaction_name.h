#pragma once
/// What the segments of a compaction have in place of the name of an attempt. Their footers list
/// ranges that several steps use, from which no step can be recovered.

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace cairn::kv::internal {

inline std::string CompactionName(std::string_view session, uint64_t id) {
  return fmt::format("{}-compact-{:016x}", session, id);
}
inline bool IsCompactionName(std::string_view attempt) { return attempt.contains("-compact-"); }

}  // namespace cairn::kv::internal
