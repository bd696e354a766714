#pragma once
/// The contract of core/ranks/communicator.h, as test suites in which each implementation
/// registers:
///
///   INSTANTIATE_TEST_SUITE_P(Gloo, CommunicatorContractTest,
///                            ::testing::ValuesIn(Worlds(MakeGlooWorld, {1, 2, 4, 7})), WorldName);
///
/// CommunicatorDeadlineTest and CommunicatorDisagreementTest are registered in the same way where
/// they apply. Link with cairn_communicator_contract.

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "core/ranks/communicator.h"

namespace cairn::testing {

/// One communicator per rank, by rank, all in this process.
using World = std::vector<std::unique_ptr<core::Communicator>>;
/// Returns an empty world and fails the test if a communicator cannot be created.
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

/// Calls `body(communicator)` once per rank, each on its own thread; returns once all have
/// returned.
void RunRanks(World& world, const std::function<void(core::Communicator&)>& body);

class CommunicatorTest : public ::testing::TestWithParam<WorldParam> {
 protected:
  /// Creates the world of this test. TearDown closes its ranks concurrently, because closing one
  /// may wait for the others.
  World& Make(std::chrono::milliseconds timeout);
  void TearDown() override;

 private:
  World world_;
};

class CommunicatorContractTest : public CommunicatorTest {};
/// Requires worlds of at least two ranks.
class CommunicatorDeadlineTest : public CommunicatorTest {
 protected:
  /// Runs `call` on all ranks except the last, which never calls it. The call must fail on all
  /// others at the deadline, and break their communicators.
  void ExpectDeadline(const std::function<Result<void>(core::Communicator&)>& call);
};
/// Ranks that call different operations fail, and write only to their own ranges. The contract does
/// not require this. Requires worlds of at least two ranks.
class CommunicatorDisagreementTest : public CommunicatorTest {};

}  // namespace cairn::testing
