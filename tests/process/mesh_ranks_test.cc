// Goal: ranks that are processes save on any mesh and load on any other. If one of them is killed
// at a random moment, many times on one store, then no committed step is damaged, no rank waits
// beyond the deadline, and the next run saves.
//
// CAIRN_MESH_ROUNDS (8) rounds of eight steps, CAIRN_KILL_ROUNDS (12) kills. CAIRN_TEST_SEED
// repeats the choices of a run, but not the kernel's timing.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <thread>

#include "core/checkpoint_store.h"
#include "tests/process/child.h"
#include "tests/process/mesh_program.h"
#include "tests/support/seeded_random.h"
#include "tests/support/store_address.h"

namespace cairn::core::testing {
namespace {

using cairn::testing::Child;
using cairn::testing::IsOk;
using cairn::testing::ScopedTempDir;
using cairn::testing::SeededRandom;
using std::chrono::steady_clock;

int Setting(const char* name, int otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr ? std::atoi(value) : otherwise;
}

/// All ranks of one run.
class Job {
 public:
  /// `words` are the arguments after MODE STORE RENDEZVOUS RUN RANK WORLD.
  Job(const std::string& mode, const std::string& store, const std::string& rendezvous,
      uint32_t world, const std::vector<std::string>& words) {
    static int runs = 0;
    const std::string name = fmt::format("run{}", runs++);
    for (uint32_t rank = 0; rank < world; ++rank) {
      std::vector<std::string> all = {CAIRN_MESH_PROGRAM,     mode, store,
                                      "file://" + rendezvous, name, std::to_string(rank),
                                      std::to_string(world)};
      all.insert(all.end(), words.begin(), words.end());
      ranks_.push_back(std::make_unique<Child>(all));
    }
  }

  Child& operator[](size_t rank) { return *ranks_[rank]; }
  size_t size() const { return ranks_.size(); }

 private:
  std::vector<std::unique_ptr<Child>> ranks_;
};

class MeshRanksTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(dir_ / "meet"); }

  void ExpectAllOk(Job run) {
    for (size_t rank = 0; rank < run.size(); ++rank) {
      const auto lines = run[rank].ReadLines();
      EXPECT_TRUE(!lines.empty() && lines.back() == "ok")
          << "rank " << rank << ": " << (lines.empty() ? "nothing" : lines.back());
      EXPECT_EQ(run[rank].Wait(), 0) << "rank " << rank;
    }
  }

  ScopedTempDir dir_{cairn::testing::FastDirectory()};
  std::string store_ = cairn::testing::NewStoreAddress(dir_, "store");
};

TEST_F(MeshRanksTest, ProcessesLoadWhatOtherProcessesSaved) {
  constexpr int kSteps = 8;
  SeededRandom random;
  fmt::print("CAIRN_TEST_SEED={}\n", random.seed());
  const int rounds = Setting("CAIRN_MESH_ROUNDS", 8);
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    store_ = cairn::testing::NewStoreAddress(dir_, fmt::format("store{}", round));
    const auto saving = static_cast<uint32_t>(random.Between(1, 8));
    const auto loading = static_cast<uint32_t>(random.Between(1, 8));
    const std::string seed = std::to_string(random.Between(0, 1u << 30));
    const std::string steps = std::to_string(kSteps);
    ExpectAllOk(Job("save", store_, dir_ / "meet", saving, {std::to_string(loading), seed, steps}));
    if (HasFailure()) return;
    ExpectAllOk(Job("load", store_, dir_ / "meet", loading, {std::to_string(saving), seed, steps}));
    if (HasFailure()) return;
  }
  fmt::print("{} steps\n", rounds * kSteps);
}

/// Loads all steps completely, in one process, and compares them with what their runs have saved.
void ExpectSteps(const std::string& path, const std::map<uint64_t, uint64_t>& seeds_by_step,
                 uint32_t world) {
  const auto store = CheckpointStore::Open(path, kv::OpenMode::kRead);
  ASSERT_TRUE(IsOk(store));
  const auto steps = (*store)->Steps();
  ASSERT_TRUE(IsOk(steps));
  ASSERT_EQ(steps->size(), seeds_by_step.size());
  for (const kv::StepInfo& info : *steps) {
    ASSERT_TRUE(seeds_by_step.contains(info.step)) << info.step;
    const LoopStep expected(info.step, seeds_by_step.at(info.step), world);
    for (const GlobalTensor& global : expected.globals) {
      TestTensor found(global.tensor.dtype, global.tensor.shape, 250);
      const LoadRequest request = WholeRequest(global.fqn, found);
      ASSERT_TRUE(IsOk((*store)->Load(info, {&request, 1})));
      ASSERT_EQ(found.bytes, global.tensor.bytes) << "step " << info.step << ", " << global.fqn;
    }
  }
}

TEST_F(MeshRanksTest, KilledRanksDamageNoStepAndBlockNoRank) {
  constexpr uint32_t kWorld = 4;
  const auto deadline = std::chrono::milliseconds(Setting("CAIRN_RANKS_DEADLINE_MS", 400));
  constexpr auto kSlack =
      std::chrono::seconds(20);  // for a busy machine, and for the open of all ranks
  SeededRandom random;
  fmt::print("CAIRN_TEST_SEED={}\n", random.seed());
  std::map<uint64_t, uint64_t> held;  // seed by step, of all committed steps
  uint64_t acknowledged = 0, in_doubt = 0;
  const int rounds = Setting("CAIRN_KILL_ROUNDS", 12);
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    const uint64_t seed = random.Between(0, 200);
    const uint64_t first = held.empty() ? 0 : held.rbegin()->first + 1;
    const auto victim = static_cast<size_t>(random.Between(0, kWorld - 1));
    Job run("loop", store_, dir_ / "meet", kWorld,
            {std::to_string(first), std::to_string(seed), std::to_string(deadline.count())});
    std::map<uint64_t, uint64_t> acknowledged_now;
    const auto note = [&](const std::string& line) {
      if (!line.starts_with("did ")) return false;
      acknowledged_now[std::stoull(line.substr(4))] = seed;
      return true;
    };
    // One in five is killed while the ranks connect and open the store, the others some saves
    // later.
    if (!random.Chance(0.2)) {
      uint64_t saves = random.Between(0, 5);
      ASSERT_EQ(run[victim].ReadLine(), "ready");
      while (saves > 0) {
        const auto line = run[victim].ReadLine();
        ASSERT_TRUE(line.has_value());
        if (note(*line)) --saves;
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random.Between(0, 12'000)));
    run[victim].Kill();
    const auto killed = steady_clock::now();
    for (size_t rank = 0; rank < kWorld; ++rank) {
      for (const std::string& line : run[rank].ReadLines()) note(line);
      run[rank].Wait();
    }
    EXPECT_LT(steady_clock::now() - killed, deadline + kSlack);
    if (!cairn::testing::StoreExists(store_)) continue;  // killed while it was created
    held.insert(acknowledged_now.begin(), acknowledged_now.end());
    acknowledged += acknowledged_now.size();
    // The save that was in progress is either committed completely or does not exist.
    const uint64_t next = held.empty() ? 0 : held.rbegin()->first + 1;
    {
      const auto reader = CheckpointStore::Open(store_, kv::OpenMode::kRead);
      ASSERT_TRUE(IsOk(reader));
      const auto steps = (*reader)->Steps();
      ASSERT_TRUE(IsOk(steps));
      if (!steps->empty() && steps->back().step == next) {
        held[next] = seed;
        ++in_doubt;
      }
    }
    ExpectSteps(store_, held, kWorld);
    if (HasFailure()) return;
  }
  // The next run saves.
  const auto writer = CheckpointStore::Open(store_, kv::OpenMode::kWrite);
  ASSERT_TRUE(IsOk(writer));
  StateDict state;
  const TestTensor tensor(DType::kInt8, {5});
  state.root().Tensor("x", tensor.view());
  EXPECT_TRUE(IsOk((*writer)->Save(1'000'000, state)));
  EXPECT_TRUE(IsOk((*writer)->Verify(
      {}, [](const kv::Damage& damage) { ADD_FAILURE() << damage.error.ToString(); })));
  fmt::print("{} kills, {} steps acknowledged, {} more committed unheard\n", rounds, acknowledged,
             in_doubt);
  EXPECT_GT(acknowledged, static_cast<uint64_t>(rounds) / 4)
      << "most kills were too early to test anything";
}

}  // namespace
}  // namespace cairn::core::testing
