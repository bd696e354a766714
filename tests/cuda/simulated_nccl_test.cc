// The simulated NCCL has the properties on which the tests of the NCCL communicator depend and
// which they do not show themselves.
#include "tests/support/simulated_nccl/simulated_nccl.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "tests/support/simulated_cuda/simulated_cuda.h"

namespace cairn::testing {
namespace {

using ::testing::ElementsAre;
namespace sim = simulated_cuda;
namespace nccl = simulated_nccl;

#define ASSERT_CUDA(call) ASSERT_EQ(call, cudaSuccess)
#define EXPECT_CUDA(call) EXPECT_EQ(call, cudaSuccess)
#define ASSERT_NCCL(call) ASSERT_EQ(call, ncclSuccess)
#define EXPECT_NCCL(call) EXPECT_EQ(call, ncclSuccess)

// The resources of a rank: a communicator, a stream, a device.
struct Rank {
  int rank = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;

  uint8_t* Device(const std::vector<int>& values) const {
    const std::vector<uint8_t> bytes(values.begin(), values.end());
    void* memory = nullptr;
    EXPECT_CUDA(cudaMalloc(&memory, bytes.size()));
    sim::PokeDevice(memory, bytes.data(), bytes.size());
    return static_cast<uint8_t*>(memory);
  }
  std::vector<uint8_t> Read(const uint8_t* memory, uint64_t count) const {
    EXPECT_CUDA(cudaStreamSynchronize(stream));
    std::vector<uint8_t> values(count);
    sim::PeekDevice(values.data(), memory, count);
    return values;
  }
  ncclResult_t AsyncError() const {
    ncclResult_t error = ncclSuccess;
    EXPECT_NCCL(ncclCommGetAsyncError(comm, &error));
    return error;
  }
  /// Polls until a call is done. Returns its result.
  ncclResult_t Await(ncclResult_t begun) const {
    EXPECT_EQ(begun, ncclInProgress);
    ncclResult_t result = ncclInProgress;
    while (result == ncclInProgress) {
      std::this_thread::yield();
      result = AsyncError();
    }
    return result;
  }
};

class SimulatedNcclTest : public ::testing::Test {
 protected:
  void SetUp() override {
    sim::Reset({.device_count = 4});
    nccl::Reset();
    ASSERT_NCCL(ncclGetUniqueId(&id_));
  }
  void TearDown() override {
    EXPECT_EQ(nccl::LiveCommunicatorCount(), 0u);
    sim::Reset();
  }

  // Runs `body` for each rank in its own thread, with its own device.
  void RunRanks(int size, const std::function<void(Rank&)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        Rank self{.rank = rank};
        ASSERT_CUDA(cudaSetDevice(rank));
        ASSERT_CUDA(cudaStreamCreateWithFlags(&self.stream, cudaStreamNonBlocking));
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        ASSERT_NCCL(self.Await(ncclCommInitRankConfig(&self.comm, size, id_, rank, &config)));
        body(self);
        if (self.comm != nullptr) {
          EXPECT_NCCL(ncclCommDestroy(self.comm));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  ncclUniqueId id_{};
};

TEST_F(SimulatedNcclTest, AReceiveWaitsForTheSendersStream) {
  RunRanks(2, [](Rank& self) {
    uint8_t* const memory = self.Device({self.rank});
    if (self.rank == 0) {
      sim::StreamBlock block(self.stream);
      ASSERT_NCCL(self.Await(ncclSend(memory, 1, ncclUint8, 1, self.comm, self.stream)));
      uint8_t* const later = self.Device({7});
      ASSERT_CUDA(cudaMemcpyAsync(memory, later, 1, cudaMemcpyDefault, self.stream));
    } else {
      ASSERT_NCCL(self.Await(ncclRecv(memory, 1, ncclUint8, 0, self.comm, self.stream)));
      EXPECT_THAT(self.Read(memory, 1), ElementsAre(0));
    }
  });
}

TEST_F(SimulatedNcclTest, APollExecutesACall) {
  RunRanks(2, [](Rank& self) {
    uint8_t* const sent = self.Device({self.rank});
    uint8_t* const memory = self.Device({9});
    const int peer = 1 - self.rank;
    ASSERT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclSend(sent, 1, ncclUint8, peer, self.comm, self.stream));
    EXPECT_NCCL(ncclRecv(memory, 1, ncclUint8, peer, self.comm, self.stream));
    EXPECT_EQ(ncclGroupEnd(), ncclInProgress);
    EXPECT_EQ(ncclSend(memory, 1, ncclUint8, peer, self.comm, self.stream), ncclInvalidArgument);
    EXPECT_CUDA(cudaStreamQuery(self.stream)) << "nothing must be enqueued yet";
    EXPECT_EQ(self.AsyncError(), ncclInProgress);
    EXPECT_EQ(self.AsyncError(), ncclSuccess);
    EXPECT_THAT(self.Read(memory, 1), ElementsAre(peer));
  });
}

TEST_F(SimulatedNcclTest, RefusesMemoryRanksAndStreamsThatDoNotExist) {
  uint8_t on_host = 0;
  RunRanks(1, [&](Rank& self) {
    EXPECT_EQ(self.Await(ncclSend(&on_host, 1, ncclUint8, 0, self.comm, self.stream)),
              ncclInvalidArgument);
  });
  ASSERT_NCCL(ncclGetUniqueId(&id_));
  RunRanks(1, [](Rank& self) {
    uint8_t* const memory = self.Device({1});
    EXPECT_EQ(ncclSend(memory, 1, ncclUint8, 1, self.comm, self.stream), ncclInvalidArgument);
    EXPECT_EQ(self.Await(ncclSend(memory, 1000, ncclUint8, 0, self.comm, self.stream)),
              ncclInvalidArgument);
  });
  ASSERT_NCCL(ncclGetUniqueId(&id_));
  RunRanks(1, [](Rank& self) {
    uint8_t* const memory = self.Device({1});
    ASSERT_CUDA(cudaSetDevice(1));
    EXPECT_EQ(self.Await(ncclSend(memory, 1, ncclUint8, 0, self.comm, nullptr)),
              ncclUnhandledCudaError);
  });
}

TEST_F(SimulatedNcclTest, ALostDeviceEndsItsWaits) {
  RunRanks(2, [](Rank& self) {
    if (self.rank == 1) return;
    uint8_t* const memory = self.Device({1});
    ASSERT_NCCL(self.Await(ncclRecv(memory, 1, ncclUint8, 1, self.comm, self.stream)));
    sim::LoseDevice(0, cudaErrorLaunchFailure);
    EXPECT_EQ(cudaStreamSynchronize(self.stream), cudaErrorLaunchFailure);
  });
}

}  // namespace
}  // namespace cairn::testing
