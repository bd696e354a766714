#pragma once
/// What core/ranks/communicator.h promises, as tests that any implementation registers into:
///
///   INSTANTIATE_TEST_SUITE_P(Gloo, CommunicatorContractTest,
///                            ::testing::ValuesIn(Worlds(MakeGlooWorld, {1, 2, 4, 7})), WorldName);
///
/// and CommunicatorDeadlineTest and CommunicatorDisagreementTest alike, where they apply. Link
/// cairn_communicator_contract.

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "core/ranks/communicator.h"

namespace cairn::testing {

/// A communicator for each rank, by rank, all in this process.
using World = std::vector<std::unique_ptr<core::Communicator>>;
/// Ends with an empty world and a test failure if it cannot be made.
using MakeWorld = std::function<World(int world_size, std::chrono::milliseconds timeout)>;

struct WorldParam {
  MakeWorld make;
  int world_size = 1;

  friend void PrintTo(const WorldParam& param, std::ostream* out) {
    *out << param.world_size << " ranks";
  }
};
std::vector<WorldParam> Worlds(const MakeWorld& make, const std::vector<int>& world_sizes);
std::string WorldName(const ::testing::TestParamInfo<WorldParam>& info);

/// Calls `body(communicator)` for each rank, in a thread for each; returns once all have returned.
void RunRanks(World& world, const std::function<void(core::Communicator&)>& body);

class CommunicatorTest : public ::testing::TestWithParam<WorldParam> {
 protected:
  /// The world of this test. Its ranks are closed at the same time, as closing one may take a
  /// while.
  World& Make(std::chrono::milliseconds timeout);
  void TearDown() override;

 private:
  World world_;
};

class CommunicatorContractTest : public CommunicatorTest {};
/// Worlds of at least two ranks.
class CommunicatorDeadlineTest : public CommunicatorTest {
 protected:
  /// Runs `call` on all ranks but the last, which never comes. All others must say so at the
  /// deadline and be broken from then on.
  void ExpectDeadline(const std::function<Result<void>(core::Communicator&)>& call);
};
/// Of at least two ranks too, where it is more than the contract asks that ranks which call
/// different things fail and keep to their ranges.
class CommunicatorDisagreementTest : public CommunicatorTest {};

}  // namespace cairn::testing
