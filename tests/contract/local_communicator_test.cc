// A world of one rank.

#include "core/ranks/local_communicator.h"

#include <gtest/gtest.h>

#include "tests/contract/communicator_contract.h"
#include "tests/support/counting_communicator.h"
#include "tests/support/result_matchers.h"

namespace cairn::testing {
namespace {

World MakeLocalWorld(int, std::chrono::milliseconds) {
  World world;
  world.push_back(std::make_unique<core::LocalCommunicator>());
  return world;
}

INSTANTIATE_TEST_SUITE_P(Local, CommunicatorContractTest,
                         ::testing::ValuesIn(Worlds(MakeLocalWorld, {1})), WorldName);
// A decorator must fulfill the contract, too.
World MakeCountingWorld(int, std::chrono::milliseconds) {
  static core::LocalCommunicator local;
  static CollectiveCounts counts;
  World world;
  world.push_back(std::make_unique<CountingCommunicator>(local, counts));
  return world;
}

INSTANTIATE_TEST_SUITE_P(Counting, CommunicatorContractTest,
                         ::testing::ValuesIn(Worlds(MakeCountingWorld, {1})), WorldName);

TEST(CountingCommunicatorTest, CountsCallsSplitsAndBytesOfPartsToo) {
  core::LocalCommunicator local;
  CollectiveCounts counts;
  CountingCommunicator counting(local, counts);
  std::vector<std::byte> bytes(10), target(10);

  CAIRN_ASSERT_OK(counting.Barrier());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto part, counting.Split(0, 0));
  CAIRN_ASSERT_OK(part->AllGather(bytes, std::vector<core::ByteTarget>{target}));

  EXPECT_EQ(counts.call_count, 3u);
  EXPECT_EQ(counts.split_count, 1u);
  EXPECT_EQ(counts.given_bytes, 10u);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorDeadlineTest);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorDisagreementTest);

}  // namespace
}  // namespace cairn::testing
