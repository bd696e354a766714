// The random gathers and broadcasts with Gloo, on ranks that are threads.

#include <gtest/gtest.h>

#include <thread>

#include "core/ranks/gloo_communicator.h"
#include "tests/core/collectives/sharded_collectives.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::core {
namespace {

using cairn::testing::ScopedTempDir;
using cairn::testing::SeededRandom;
using World = std::vector<std::unique_ptr<Communicator>>;

void OnEachRank(int world_size, const std::function<void(size_t)>& body) {
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back([&body, rank] { body(static_cast<size_t>(rank)); });
  }
}

World Connect(int world_size, const std::string& directory) {
  World world(static_cast<size_t>(world_size));
  OnEachRank(world_size, [&](size_t rank) {
    CAIRN_ASSERT_OK_AND_ASSIGN(world[rank], ConnectGloo({.rank = static_cast<int>(rank),
                                                         .world_size = world_size,
                                                         .rendezvous = "file://" + directory,
                                                         .interface = "127.0.0.1",
                                                         .timeout = std::chrono::seconds(60)}));
  });
  return world;
}

class StateDictGlooTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    world_ = Connect(GetParam(), directory_.path());
    ASSERT_FALSE(HasFailure());
  }

  ScopedTempDir directory_;
  World world_;
};
INSTANTIATE_TEST_SUITE_P(, StateDictGlooTest, ::testing::Values(1, 2, 4, 7),
                         [](const auto& info) { return "Of" + std::to_string(info.param); });

TEST_P(StateDictGlooTest, RandomShardsBecomeWhole) {
  SeededRandom random;
  for (int round = 0; round < 15; ++round) {
    SCOPED_TRACE(round);
    const GatherScenario scenario(random, static_cast<uint32_t>(GetParam()));
    OnEachRank(GetParam(), [&](size_t rank) { scenario.RunRank(*world_[rank]); });
    ASSERT_FALSE(HasFailure());
  }
}

TEST_P(StateDictGlooTest, RandomTargetsGetTheirShards) {
  SeededRandom random;
  for (int round = 0; round < 15; ++round) {
    SCOPED_TRACE(round);
    BroadcastScenario scenario(random, static_cast<uint32_t>(GetParam()));
    OnEachRank(GetParam(), [&](size_t rank) { scenario.RunRank(*world_[rank]); });
    ASSERT_FALSE(HasFailure());
  }
}

}  // namespace
}  // namespace cairn::core
