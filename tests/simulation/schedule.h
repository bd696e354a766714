#pragma once
/// Runs one schedule: writers, readers and jobs at the same time, and the audit after them.

#include <cstdint>
#include <string>

#include "tests/simulation/simulated_storage.h"

namespace cairn::simulation {

struct ScheduleResult {
  std::string violation;  // empty if there is none
  std::string trace;      // its end, if there is a violation
  uint64_t hash = 0;      // of all that happened
  Counts counts;
  uint64_t roots = 0;  // that were put
};

ScheduleResult RunSchedule(uint64_t seed);

}  // namespace cairn::simulation
