// Goal: whatever the order of the requests of writers, readers and ranks, and whatever requests
// fail, the store keeps its promises. A failure prints its seed, which repeats it.
//
// CAIRN_SIMULATION_SECONDS sets how long schedules run, CAIRN_SIMULATION_COUNT their largest
// number, and CAIRN_SIMULATION_FIRST the seed of the first one; the others follow. If no time is
// set, the first seed is 1, and otherwise random. CAIRN_TEST_SEED runs the schedule of this seed
// alone.

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

/// The sum of all schedules.
struct Total {
  uint64_t schedules = 0;
  uint64_t roots = 0;
  Counts counts;

  void Add(const ScheduleResult& result) {
    ++schedules;
    roots += result.roots;
    for (uint64_t Counts::* const count :
         {&Counts::acknowledged, &Counts::failed, &Counts::unknown, &Counts::loads,
          &Counts::requests, &Counts::faults, &Counts::outages, &Counts::pauses, &Counts::kills,
          &Counts::stale_listings, &Counts::replaced_stores, &Counts::strays}) {
      counts.*count += result.counts.*count;
    }
  }
  void Print(double seconds, uint64_t first_seed) const {
    fmt::print(
        "{} schedules in {:.0f} s ({:.0f} per minute) from seed {}: {} commits, {} requests, "
        "{} faults, {} outages, {} pauses, {} kills, {} late listings, {} replaced "
        "stores, {} roots put into another store; {} operations were acknowledged, {} failed, {} "
        "of which may have been performed; {} loads\n",
        schedules, seconds, static_cast<double>(schedules) * 60 / seconds, first_seed, roots,
        counts.requests, counts.faults, counts.outages, counts.pauses, counts.kills,
        counts.stale_listings, counts.replaced_stores, counts.strays, counts.acknowledged,
        counts.failed, counts.unknown, counts.loads);
  }
};

TEST(SimulationTest, EveryScheduleKeepsThePromises) {
  const auto begin = Clock::now();
  const std::optional<uint64_t> seconds = Variable("CAIRN_SIMULATION_SECONDS");
  const auto end = begin + std::chrono::seconds(seconds.value_or(kDefaultSeconds));
  const std::optional<uint64_t> only = Variable("CAIRN_TEST_SEED");
  const uint64_t first = only.value_or(
      Variable("CAIRN_SIMULATION_FIRST").value_or(seconds ? std::random_device{}() : 1));
  const uint64_t max_count = only ? 1 : Variable("CAIRN_SIMULATION_COUNT").value_or(~uint64_t{0});
  Total total;
  while (total.schedules < max_count && (total.schedules == 0 || Clock::now() < end)) {
    const uint64_t seed = first + total.schedules;
    const ScheduleResult result = RunSeed(seed);
    ASSERT_EQ(result.violation, "") << Explain(seed, result);
    total.Add(result);
  }
  total.Print(std::chrono::duration<double>(Clock::now() - begin).count(), first);
}

TEST(SimulationTest, OneSeedIsOneSchedule) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    EXPECT_EQ(RunSeed(seed).hash, RunSeed(seed).hash) << "CAIRN_TEST_SEED=" << seed;
  }
  EXPECT_NE(RunSeed(1).hash, RunSeed(2).hash);
}

}  // namespace
}  // namespace cairn::simulation
