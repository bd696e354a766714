// A world of one rank.

#include "core/ranks/local_communicator.h"

#include <gtest/gtest.h>

#include "tests/contract/communicator_contract.h"

namespace cairn::testing {
namespace {

World MakeLocalWorld(int, std::chrono::milliseconds) {
  World world;
  world.push_back(std::make_unique<core::LocalCommunicator>());
  return world;
}

INSTANTIATE_TEST_SUITE_P(Local, CommunicatorContractTest,
                         ::testing::ValuesIn(Worlds(MakeLocalWorld, {1})), WorldName);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorDeadlineTest);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorDisagreementTest);

}  // namespace
}  // namespace cairn::testing
