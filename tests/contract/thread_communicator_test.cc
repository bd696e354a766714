// The communicator of the tests fulfills the contract, too.

#include "tests/support/thread_communicator.h"

#include <gtest/gtest.h>

#include "tests/contract/communicator_contract.h"

namespace cairn::testing {
namespace {

World MakeThreadWorld(int world_size, std::chrono::milliseconds timeout) {
  const auto shared = std::make_shared<ThreadCommunicator::Shared>(world_size, timeout);
  World world;
  for (int rank = 0; rank < world_size; ++rank) {
    world.push_back(std::make_unique<ThreadCommunicator>(shared, rank));
  }
  return world;
}

INSTANTIATE_TEST_SUITE_P(Threads, CommunicatorContractTest,
                         ::testing::ValuesIn(Worlds(MakeThreadWorld, {1, 2, 4, 7})), WorldName);
INSTANTIATE_TEST_SUITE_P(Threads, CommunicatorDeadlineTest,
                         ::testing::ValuesIn(Worlds(MakeThreadWorld, {2, 4})), WorldName);
INSTANTIATE_TEST_SUITE_P(Threads, CommunicatorDisagreementTest,
                         ::testing::ValuesIn(Worlds(MakeThreadWorld, {2, 4})), WorldName);

}  // namespace
}  // namespace cairn::testing
