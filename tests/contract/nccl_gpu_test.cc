// NCCL with ranks that are threads of one process, one rank per GPU of this machine.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "cuda/nccl_communicator.h"
#include "tests/contract/communicator_contract.h"
#include "tests/support/result_matchers.h"
#include "tests/support/thread_communicator.h"

namespace cairn::testing {
namespace {

/// The reason why the tests cannot run here; empty if they can.
std::string WhyNot() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) return cudaGetErrorString(status);
  if (count == 0) return "no GPU";
  const auto nccl = cuda::DescribeNccl();
  return nccl ? std::string() : nccl.error().ToString();
}

World MakeNcclWorld(int world_size, std::chrono::milliseconds timeout) {
  World world(static_cast<size_t>(world_size));
  RunRanks(world_size, [&](core::Communicator& host) {
    CAIRN_ASSERT_OK_AND_ASSIGN(
        world[static_cast<size_t>(host.rank())],
        cuda::ConnectNccl(host, {.device = host.rank(), .timeout = timeout}));
  });
  for (const auto& communicator : world) {
    if (communicator == nullptr) return {};
  }
  return world;
}

/// Worlds of one rank, and of one rank per GPU; requires at least `least` GPUs.
std::vector<WorldParam> WorldsHere(int least) {
  if (!WhyNot().empty()) return {};
  int count = 0;
  cudaGetDeviceCount(&count);
  std::vector<int> sizes;
  if (least <= 1) sizes.push_back(1);
  if (count >= std::max(least, 2)) sizes.push_back(count);
  return Worlds(MakeNcclWorld, sizes);
}

TEST(NcclOnGpuTest, ThereIsAGpuWithNccl) {
  if (const std::string why = WhyNot(); !why.empty()) GTEST_SKIP() << why;
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  if (count < 2) GTEST_SKIP() << "one GPU: worlds of one rank only, no deadlines";
}

INSTANTIATE_TEST_SUITE_P(Nccl, CommunicatorContractTest, ::testing::ValuesIn(WorldsHere(1)),
                         WorldName);
INSTANTIATE_TEST_SUITE_P(Nccl, CommunicatorDeadlineTest, ::testing::ValuesIn(WorldsHere(2)),
                         WorldName);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorContractTest);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorDeadlineTest);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorDisagreementTest);

}  // namespace
}  // namespace cairn::testing
