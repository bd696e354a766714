#pragma once
/// Workloads whose instructions are counted, and the function that counts them.
///
/// Under `valgrind --tool=callgrind --instr-atstart=no` each Count writes a dump that is named
/// after its measurement, and a line "NAME UNIT UNITS" on standard output, in the order of the
/// dumps. If a measurement is taken twice with different numbers of units, its result is the
/// difference of the two, which removes the instructions that do not depend on the units.

#include <valgrind/callgrind.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "kv/error.h"

namespace cairn::bench {

struct Case {
  const char* name;
  /// Runs the workload and counts parts of it. `directory` is empty and used by this case alone.
  Result<void> (*run)(const std::string& directory);
};

/// Runs `workload`, which processes `units` of `unit`, and counts the instructions of all threads.
template <typename Workload>
auto Count(const char* name, const char* unit, uint64_t units, Workload&& workload) {
  CALLGRIND_START_INSTRUMENTATION;
  auto result = std::forward<Workload>(workload)();
  CALLGRIND_STOP_INSTRUMENTATION;
  CALLGRIND_DUMP_STATS_AT(name);
  std::printf("%s %s %llu\n", name, unit, static_cast<unsigned long long>(units));
  return result;
}

}  // namespace cairn::bench
