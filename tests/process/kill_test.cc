// Goal: if a writer is killed at random moments, many times on one store, then no acknowledged
// change is lost, no change is partial, and the store remains usable.
//
// CAIRN_KILL_ROUNDS (100) is the number of kills, and CAIRN_KILL_WITHIN_MS (60) the longest time
// that a writer lives. CAIRN_TEST_SEED repeats the choices of a run, but not the kernel's timing.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "kv/base/options.h"
#include "kv/store.h"
#include "tests/fault/operations.h"
#include "tests/kv/store_checks.h"
#include "tests/process/child.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"
#include "tests/support/seeded_random.h"
#include "tests/support/store_address.h"

namespace cairn::kv {
namespace {

using cairn::testing::Child;
using cairn::testing::ScopedTempDir;
using cairn::testing::SeededRandom;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

using Versions = std::map<uint64_t, uint64_t>;  // step -> version

/// One line of output of the writer: "will|did save|delete STEP VERSION".
struct Change {
  bool done = false;
  bool save = false;
  uint64_t step = 0;
  uint64_t version = 0;
};

std::optional<Change> ParseChange(const std::string& line) {
  char when[8], what[8];
  unsigned long long step, version;
  if (std::sscanf(line.c_str(), "%7s %7s %llu %llu", when, what, &step, &version) != 4) {
    return std::nullopt;
  }
  return Change{.done = std::string(when) == "did",
                .save = std::string(what) == "save",
                .step = step,
                .version = version};
}

void Apply(const Change& change, Versions& versions) {
  if (change.save) {
    versions[change.step] = change.version;
  } else {
    versions.erase(change.step);
  }
}

/// The possible contents of the store: everything that was acknowledged, with or without the change
/// that was in progress.
struct Allowed {
  Versions without;
  Versions with;
  uint64_t acknowledged = 0;
};

Allowed WaitForStream(const Versions& before, const std::vector<std::string>& lines) {
  Allowed allowed{.without = before, .with = before, .acknowledged = 0};
  for (const std::string& line : lines) {
    const auto change = ParseChange(line);
    if (!change) {
      EXPECT_EQ(line, "ready");
      continue;
    }
    Apply(*change, allowed.with);
    if (change->done) {
      allowed.without = allowed.with;
      ++allowed.acknowledged;
    }
  }
  return allowed;
}

/// Loads every step, compares it bit for bit, and returns the version of each step.
void ReadVersions(const std::string& path, OpenMode mode, Versions& versions) {
  versions.clear();
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path, mode, SmallBlocks()));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->Latest());
  for (const uint64_t step : snapshot->step_numbers()) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const SampleStep loaded, LoadSample(*snapshot, step));
    ASSERT_TRUE(loaded == MakeSample(step, loaded.version, kLoopShape)) << "step " << step;
    versions[step] = loaded.version;
  }
}

int NumberFromEnvironment(const char* name, int usual) {
  const char* const given = std::getenv(name);
  return given != nullptr ? std::atoi(given) : usual;
}
int Rounds() { return NumberFromEnvironment("CAIRN_KILL_ROUNDS", 100); }

TEST(KillTest, EveryAcknowledgedChangeSurvivesRandomKills) {
  SeededRandom random;
  fmt::print("CAIRN_TEST_SEED={}\n", random.seed());
  ScopedTempDir dir(cairn::testing::FastDirectory());
  const std::string path = cairn::testing::NewStoreAddress(dir, "store");
  Versions versions;
  uint64_t acknowledged = 0, in_doubt = 0, in_doubt_done = 0;
  const int longest_life_us = 1'000 * NumberFromEnvironment("CAIRN_KILL_WITHIN_MS", 60);
  for (int round = 0; round < Rounds(); ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    std::vector<std::string> lines;
    {
      Child writer(
          {CAIRN_STORE_PROGRAM, "save-loop", path, std::to_string(random.Between(1, ~0u))});
      // One in four is killed while it opens the store and cleans up after the previous one.
      if (!random.Chance(0.25)) {
        const auto ready = writer.ReadLine();
        ASSERT_EQ(ready, "ready");
      }
      std::this_thread::sleep_for(std::chrono::microseconds(random.Between(0, longest_life_us)));
      writer.Kill();
      lines = writer.ReadLines();
      ASSERT_EQ(writer.Wait(), -SIGKILL);
    }
    const Allowed allowed = WaitForStream(versions, lines);
    acknowledged += allowed.acknowledged;
    if (!cairn::testing::StoreExists(path)) continue;  // killed while it created the store
    Versions read, written;
    ReadVersions(path, OpenMode::kRead, read);
    if (HasFailure()) return;
    ASSERT_TRUE(read == allowed.without || read == allowed.with);
    if (allowed.with != allowed.without) {
      ++in_doubt;
      if (read == allowed.with) ++in_doubt_done;
    }
    ReadVersions(path, OpenMode::kWrite, written);
    if (HasFailure()) return;
    ASSERT_EQ(written, read);
    versions = read;
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path, OpenMode::kWrite, SmallBlocks()));
  ExpectSound(*store);
  ExpectNoLeftovers(path);
  fmt::print("{} kills, {} acknowledged changes, {} killed in one ({} of them came to be)\n",
             Rounds(), acknowledged, in_doubt, in_doubt_done);
  EXPECT_GT(acknowledged, static_cast<uint64_t>(Rounds()) / 4)
      << "most kills were too early to test anything";
}

}  // namespace
}  // namespace cairn::kv
