// Goal: whatever the order of the requests of writers, readers and ranks, and whatever requests
// fail, the store keeps its promises. A failure prints its seed, which repeats it.
//
// CAIRN_SIMULATION_SECONDS sets how long the schedules run, CAIRN_SIMULATION_COUNT how many there
// are, and CAIRN_TEST_SEED runs the schedule of this seed alone.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <random>

#include "tests/simulation/schedule.h"

namespace cairn::simulation {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kDefaultSeconds = 20;

std::optional<uint64_t> Variable(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return std::strtoull(value, nullptr, 10);
}

volatile uint64_t running_seed = 0;

/// A failed CAIRN_CHECK ends the process: states the seed before.
void PrintSeed(int signal_number) {
  std::fprintf(stderr, "CAIRN_TEST_SEED=%llu\n", static_cast<unsigned long long>(running_seed));
  ::signal(signal_number, SIG_DFL);
  ::raise(signal_number);
}

ScheduleResult RunSeed(uint64_t seed) {
  running_seed = seed;
  for (const int number : {SIGABRT, SIGSEGV}) ::signal(number, PrintSeed);
  ScheduleResult result = RunSchedule(seed);
  for (const int number : {SIGABRT, SIGSEGV}) ::signal(number, SIG_DFL);
  return result;
}

std::string Explain(uint64_t seed, const ScheduleResult& result) {
  return fmt::format("{}CAIRN_TEST_SEED={}\n{}", result.trace, seed, result.violation);
}

void Add(const ScheduleResult& result, ScheduleResult& total) {
  total.roots += result.roots;
  total.counts.requests += result.counts.requests;
  total.counts.faults += result.counts.faults;
  total.counts.pauses += result.counts.pauses;
  total.counts.kills += result.counts.kills;
  total.counts.stale_listings += result.counts.stale_listings;
}

TEST(SimulationTest, EveryScheduleKeepsThePromises) {
  const auto begin = Clock::now();
  const auto end =
      begin + std::chrono::seconds(Variable("CAIRN_SIMULATION_SECONDS").value_or(kDefaultSeconds));
  const std::optional<uint64_t> only = Variable("CAIRN_TEST_SEED");
  const uint64_t first =
      only.value_or(Variable("CAIRN_SIMULATION_FIRST").value_or(std::random_device{}()));
  const uint64_t max_count = only ? 1 : Variable("CAIRN_SIMULATION_COUNT").value_or(~uint64_t{0});
  ScheduleResult total;
  uint64_t count = 0;
  while (count < max_count && (count == 0 || Clock::now() < end)) {
    const uint64_t seed = first + count++;
    const ScheduleResult result = RunSeed(seed);
    ASSERT_EQ(result.violation, "") << Explain(seed, result);
    Add(result, total);
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  fmt::print(
      "{} schedules in {:.0f} s ({:.0f} per minute) from seed {}: {} commits, {} requests, "
      "{} faults, {} pauses, {} kills, {} late listings\n",
      count, seconds, static_cast<double>(count) * 60 / seconds, first, total.roots,
      total.counts.requests, total.counts.faults, total.counts.pauses, total.counts.kills,
      total.counts.stale_listings);
}

TEST(SimulationTest, OneSeedIsOneSchedule) {
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}) {
    EXPECT_EQ(RunSeed(seed).hash, RunSeed(seed).hash) << "CAIRN_TEST_SEED=" << seed;
  }
  EXPECT_NE(RunSeed(1).hash, RunSeed(2).hash);
}

}  // namespace
}  // namespace cairn::simulation
