#pragma once
/// The workloads whose instructions are counted, and the function that counts them.
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

#include "kv/base/error.h"

namespace cairn::bench {

struct Case {
  const char* name;
  /// Runs the workload and counts parts of it. `directory` is empty and used by this case alone.
  Result<void> (*run)(const std::string& directory);
};

// In memory alone: digests, strided copies, keys.
Result<void> CountWordSum(const std::string& directory);
Result<void> CountDigest(const std::string& directory);
Result<void> CountGatherRows(const std::string& directory);
Result<void> CountGatherTransposed(const std::string& directory);
Result<void> CountScatterRows(const std::string& directory);
Result<void> CountScatterTransposed(const std::string& directory);
Result<void> CountChunkKeys(const std::string& directory);

// On a store: small tensors, large tensors, opening.
Result<void> CountSmallTensors(const std::string& directory);
Result<void> CountPayload(const std::string& directory);
Result<void> CountOpen(const std::string& directory);

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
