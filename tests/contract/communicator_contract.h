#pragma once
/// What core/communicator.h promises, as tests that any implementation registers into:
///
///   INSTANTIATE_TEST_SUITE_P(Gloo, CommunicatorContractTest,
///                            ::testing::ValuesIn(Worlds(MakeGlooWorld, {1, 2, 4, 7})), WorldName);
///
/// and, where ranks can wait for each other in vain (worlds of two ranks and more),
/// CommunicatorDeadlineTest alike. Link cairn_communicator_contract.

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "core/communicator.h"

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

class CommunicatorContractTest : public ::testing::TestWithParam<WorldParam> {};
/// Worlds of at least two ranks.
class CommunicatorDeadlineTest : public ::testing::TestWithParam<WorldParam> {};

}  // namespace cairn::testing
