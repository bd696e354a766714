#pragma once
/// The cases whose instructions are counted, and the function that counts them.
///
/// Under `valgrind --tool=callgrind --instr-atstart=no` each Count ends in a dump named after its
/// case, and in a line "CASE UNIT UNITS" on standard output, in the order of the dumps. If a
/// case is counted twice with different numbers of units, the difference of the two is used: costs
/// that do not depend on the number of units cancel out.

#include <valgrind/callgrind.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "kv/error.h"

namespace cairn::bench {

struct Case {
  const char* name;
  /// Runs the case, including Count. `directory` is empty and belongs to this case.
  Result<void> (*run)(const std::string& directory);
};

/// Runs `work`, which processes `units` units, and counts all of its threads.
template <typename Work>
auto Count(const char* name, const char* unit, uint64_t units, Work&& work) {
  CALLGRIND_START_INSTRUMENTATION;
  auto result = std::forward<Work>(work)();
  CALLGRIND_STOP_INSTRUMENTATION;
  CALLGRIND_DUMP_STATS_AT(name);
  std::printf("%s %s %llu\n", name, unit, static_cast<unsigned long long>(units));
  return result;
}

// memory_cases.cc
Result<void> CountWordSum(const std::string& directory);
Result<void> CountDigest(const std::string& directory);
Result<void> CountGatherRows(const std::string& directory);
Result<void> CountGatherTransposed(const std::string& directory);
Result<void> CountScatterRows(const std::string& directory);
Result<void> CountScatterTransposed(const std::string& directory);
Result<void> CountChunkKeys(const std::string& directory);

// store_cases.cc
Result<void> CountSmallTensors(const std::string& directory);
Result<void> CountPayload(const std::string& directory);
Result<void> CountOpen(const std::string& directory);

}  // namespace cairn::bench
