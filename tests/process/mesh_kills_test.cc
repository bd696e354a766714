// Goal: if a rank, the server of the storage, or both are killed at random moments, many times on
// one store, then every acknowledged step is complete, no step is damaged, no rank waits beyond the
// deadline, and the next run saves.
//
// CAIRN_KILL_ROUNDS (12) is the number of rounds. In each, a rank is killed within
// CAIRN_KILL_WITHIN_MS (12) after some saves. If CAIRN_TEST_SERVER_KILL and
// CAIRN_TEST_SERVER_RESTART are shell commands, half of the rounds also kill the server and start
// it again. CAIRN_TEST_SEED repeats the choices of a run, but not the kernel's timing.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <thread>

#include "core/checkpoint_store.h"
#include "tests/process/mesh_job.h"
#include "tests/process/mesh_program.h"
#include "tests/support/seeded_random.h"
#include "tests/support/store_address.h"

namespace cairn::core::testing {
namespace {

using cairn::testing::IsOk;
using cairn::testing::MeshJob;
using cairn::testing::ScopedTempDir;
using cairn::testing::SeededRandom;
using cairn::testing::Setting;
using std::chrono::milliseconds;

constexpr uint32_t kWorld = 4;
constexpr size_t kLoadedCount = 12;

/// Expects these steps and no others. Loads the newest `loaded_count` completely, in one process,
/// and compares them with what their runs have saved.
void ExpectSteps(const std::string& path, const std::map<uint64_t, uint64_t>& seeds_by_step,
                 size_t loaded_count) {
  const auto store = CheckpointStore::Open(path, kv::OpenMode::kRead);
  ASSERT_TRUE(IsOk(store));
  const auto steps = (*store)->Steps();
  ASSERT_TRUE(IsOk(steps));
  ASSERT_EQ(steps->size(), seeds_by_step.size());
  for (size_t i = 0; i < steps->size(); ++i) {
    const kv::StepInfo& info = (*steps)[i];
    ASSERT_TRUE(seeds_by_step.contains(info.step)) << info.step;
    if (i + loaded_count < steps->size()) continue;
    const LoopStep expected(info.step, seeds_by_step.at(info.step), kWorld);
    for (const GlobalTensor& global : expected.globals) {
      TestTensor found(global.tensor.dtype, global.tensor.shape, 250);
      const LoadRequest request = WholeRequest(global.fqn, found);
      ASSERT_TRUE(IsOk((*store)->Load(info, {&request, 1})));
      ASSERT_EQ(found.bytes, global.tensor.bytes) << "step " << info.step << ", " << global.fqn;
    }
  }
}

/// The server of the storage, if the test can kill it.
class StorageServer {
 public:
  bool can_be_killed() const { return kill_ != nullptr && restart_ != nullptr; }
  void Kill() {
    ASSERT_EQ(std::system(kill_), 0) << kill_;
    ++kill_count_;
  }
  /// Starts the server, and waits until it answers.
  void Restart(const std::string& address) {
    ASSERT_EQ(std::system(restart_), 0) << restart_;
    const auto storage = kv::OpenStorage(address);
    ASSERT_TRUE(IsOk(storage));
    while (!kv::ObjectExists(**storage, kv::internal::kIdentityName)) {
      std::this_thread::sleep_for(milliseconds(200));
    }
  }
  int kill_count() const { return kill_count_; }

 private:
  const char* const kill_ = std::getenv("CAIRN_TEST_SERVER_KILL");
  const char* const restart_ = std::getenv("CAIRN_TEST_SERVER_RESTART");
  int kill_count_ = 0;
};

class MeshKillsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(dir_ / "meet");
    fmt::print("CAIRN_TEST_SEED={}\n", random_.seed());
  }

  void RunRound() {
    const uint64_t seed = random_.Between(0, 200);
    const uint64_t first = held_.empty() ? 0 : held_.rbegin()->first + 1;
    const auto victim = static_cast<size_t>(random_.Between(0, kWorld - 1));
    // One in five runs is killed while the ranks connect and open the store, the others some saves
    // later. Only the peers of a rank that was killed early wait in vain.
    const bool is_early = random_.Chance(0.2);
    MeshJob run("loop", store_, dir_ / "meet", kWorld,
                {std::to_string(first), std::to_string(seed), std::to_string(deadline_.count()),
                 is_early ? "4000" : "120000"});
    std::map<uint64_t, uint64_t> acknowledged;
    if (!is_early) AwaitSaves(run[victim], acknowledged, seed);
    if (HasFailure()) return;
    std::this_thread::sleep_for(Pause(milliseconds(Setting("CAIRN_KILL_WITHIN_MS", 12))));
    if (server_.can_be_killed() && random_.Chance(0.5)) {
      server_.Kill();
      std::this_thread::sleep_for(Pause(milliseconds(1500)));
      // Half of the ranks die while there is no server.
      if (random_.Chance(0.5)) run[victim].Kill();
      server_.Restart(store_);
      if (HasFailure()) return;
      std::this_thread::sleep_for(Pause(milliseconds(1000)));
    }
    run[victim].Kill();
    ++rank_kill_count_;
    for (size_t rank = 0; rank < kWorld; ++rank) {
      for (const std::string& line : run[rank].ReadLines()) Note(line, acknowledged, seed);
      run[rank].Wait();
    }
    CheckStore(acknowledged, seed);
  }

  /// Waits until the rank has saved some steps, or a save has met its deadline on a busy machine.
  void AwaitSaves(cairn::testing::Child& rank, std::map<uint64_t, uint64_t>& acknowledged,
                  uint64_t seed) {
    uint64_t saves = random_.Between(0, 5);
    ASSERT_EQ(rank.ReadLine(), "ready");
    while (saves > 0) {
      const auto line = rank.ReadLine();
      ASSERT_TRUE(line.has_value());
      if (line->starts_with("failed Unavailable ")) return;
      if (Note(*line, acknowledged, seed)) --saves;
    }
  }

  static bool Note(const std::string& line, std::map<uint64_t, uint64_t>& acknowledged,
                   uint64_t seed) {
    if (!line.starts_with("did ")) return false;
    acknowledged[std::stoull(line.substr(4))] = seed;
    return true;
  }

  std::chrono::microseconds Pause(milliseconds longest) {
    return std::chrono::microseconds(
        random_.Between(0, static_cast<uint64_t>(longest.count()) * 1000));
  }

  void CheckStore(const std::map<uint64_t, uint64_t>& acknowledged, uint64_t seed) {
    if (!cairn::testing::StoreExists(store_)) {  // killed while it was created
      EXPECT_TRUE(acknowledged.empty() && held_.empty());
      return;
    }
    held_.insert(acknowledged.begin(), acknowledged.end());
    acknowledged_count_ += acknowledged.size();
    // The save that was in progress is either committed completely or does not exist.
    const uint64_t next = held_.empty() ? 0 : held_.rbegin()->first + 1;
    {
      const auto reader = CheckpointStore::Open(store_, kv::OpenMode::kRead);
      ASSERT_TRUE(IsOk(reader));
      const auto steps = (*reader)->Steps();
      ASSERT_TRUE(IsOk(steps));
      if (!steps->empty() && steps->back().step == next) {
        held_[next] = seed;
        ++in_doubt_count_;
      }
    }
    // All of them in each round would take longer than everything else.
    ExpectSteps(store_, held_, kLoadedCount);
  }

  void ExpectUsable() {
    const auto writer = CheckpointStore::Open(store_, kv::OpenMode::kWrite);
    ASSERT_TRUE(IsOk(writer));
    StateDict state;
    const TestTensor tensor(DType::kInt8, {5});
    state.root().Tensor("x", tensor.view());
    EXPECT_TRUE(IsOk((*writer)->Save(1'000'000, state)));
    EXPECT_TRUE(IsOk((*writer)->Verify(
        {}, [](const kv::Damage& damage) { ADD_FAILURE() << damage.error.ToString(); })));
  }

  ScopedTempDir dir_{cairn::testing::FastDirectory()};
  const std::string store_ = cairn::testing::NewStoreAddress(dir_, "store");
  const milliseconds deadline_{Setting("CAIRN_RANKS_DEADLINE_MS", 1'500)};
  SeededRandom random_;
  StorageServer server_;
  std::map<uint64_t, uint64_t> held_;  // seed by step, of all committed steps
  uint64_t acknowledged_count_ = 0, in_doubt_count_ = 0, rank_kill_count_ = 0;
};

TEST_F(MeshKillsTest, KilledRanksAndServersDamageNoStepAndBlockNoRank) {
  const int rounds = Setting("CAIRN_KILL_ROUNDS", 12);
  int round = 0;
  for (; round < rounds && !HasFailure(); ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    RunRound();
  }
  if (!held_.empty()) ExpectSteps(store_, held_, held_.size());
  if (!HasFailure()) ExpectUsable();
  fmt::print(
      "{} rounds: {} kills of ranks, {} kills of the server, {} steps acknowledged, {} more "
      "committed unheard\n",
      round, rank_kill_count_, server_.kill_count(), acknowledged_count_, in_doubt_count_);
  EXPECT_GT(acknowledged_count_, static_cast<uint64_t>(rounds) / 4)
      << "most kills were too early to test anything";
}

}  // namespace
}  // namespace cairn::core::testing
