// Gloo's ranks, as threads of one process; tests/process/ has them as processes.

#include "core/gloo_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "tests/contract/communicator_contract.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::testing {
namespace {

using core::ConnectGloo;
using core::GlooOptions;
using std::chrono::milliseconds;

GlooOptions OptionsOf(int rank, int world_size, const std::string& directory,
                      milliseconds timeout = std::chrono::seconds(60)) {
  return {.rank = rank,
          .world_size = world_size,
          .rendezvous = "file://" + directory,
          .run_id = "run",
          .interface = "127.0.0.1",
          .timeout = timeout};
}

World MakeGlooWorld(int world_size, milliseconds timeout) {
  ScopedTempDir dir;
  World world(static_cast<size_t>(world_size));
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < world_size; ++rank) {
      ranks.emplace_back([&, rank] {
        CAIRN_ASSERT_OK_AND_ASSIGN(world[static_cast<size_t>(rank)],
                                   ConnectGloo(OptionsOf(rank, world_size, dir.path(), timeout)));
      });
    }
  }
  for (const auto& communicator : world) {
    if (communicator == nullptr) return {};
  }
  return world;
}

INSTANTIATE_TEST_SUITE_P(Gloo, CommunicatorContractTest,
                         ::testing::ValuesIn(Worlds(MakeGlooWorld, {1, 2, 4, 7})), WorldName);
INSTANTIATE_TEST_SUITE_P(Gloo, CommunicatorDeadlineTest,
                         ::testing::ValuesIn(Worlds(MakeGlooWorld, {2, 4})), WorldName);

}  // namespace
}  // namespace cairn::testing
