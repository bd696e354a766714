// The simulated NCCL has the properties that tests of the NCCL communicator depend on.
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
using ::testing::HasSubstr;
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

  int32_t* Device(const std::vector<int32_t>& values) const {
    void* memory = nullptr;
    EXPECT_CUDA(cudaMalloc(&memory, values.size() * 4 + 4));
    sim::PokeDevice(memory, values.data(), values.size() * 4);
    return static_cast<int32_t*>(memory);
  }
  std::vector<int32_t> Read(const int32_t* memory, uint64_t count) const {
    EXPECT_CUDA(cudaStreamSynchronize(stream));
    std::vector<int32_t> values(count);
    sim::PeekDevice(values.data(), memory, count * 4);
    return values;
  }
  ncclResult_t AsyncError() const {
    ncclResult_t error = ncclSuccess;
    EXPECT_NCCL(ncclCommGetAsyncError(comm, &error));
    return error;
  }
  void PollUntilDone() const {
    while (AsyncError() == ncclInProgress) std::this_thread::yield();
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
  void RunRanks(int size, const std::function<void(Rank&)>& body, bool blocking = true) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        Rank self{.rank = rank};
        ASSERT_CUDA(cudaSetDevice(rank));
        ASSERT_CUDA(cudaStreamCreateWithFlags(&self.stream, cudaStreamNonBlocking));
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = blocking ? 1 : 0;
        const ncclResult_t begun = ncclCommInitRankConfig(&self.comm, size, id_, rank, &config);
        ASSERT_EQ(begun, blocking ? ncclSuccess : ncclInProgress);
        self.PollUntilDone();
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

TEST_F(SimulatedNcclTest, RanksKnowEachOther) {
  RunRanks(3, [](Rank& self) {
    int size = 0;
    int rank = -1;
    int device = -1;
    EXPECT_NCCL(ncclCommCount(self.comm, &size));
    EXPECT_NCCL(ncclCommUserRank(self.comm, &rank));
    EXPECT_NCCL(ncclCommCuDevice(self.comm, &device));
    EXPECT_EQ(size, 3);
    EXPECT_EQ(rank, self.rank);
    EXPECT_EQ(device, self.rank);
  });
}

// Rank r sends r + 1 elements to each rank, including itself.
TEST_F(SimulatedNcclTest, AGroupOfUnequalSendsAndReceivesProceedsTogether) {
  RunRanks(4, [](Rank& self) {
    const int mine = self.rank + 1;
    int32_t* const sent = self.Device(std::vector<int32_t>(mine, 100 + self.rank));
    int32_t* const received = self.Device(std::vector<int32_t>(10, -1));
    ASSERT_NCCL(ncclGroupStart());
    for (int peer = 0, offset = 0; peer < 4; offset += peer + 1, ++peer) {
      EXPECT_NCCL(ncclSend(sent, mine, ncclInt32, peer, self.comm, self.stream));
      EXPECT_NCCL(ncclRecv(received + offset, peer + 1, ncclInt32, peer, self.comm, self.stream));
    }
    ASSERT_NCCL(ncclGroupEnd());

    EXPECT_THAT(self.Read(received, 10),
                ElementsAre(100, 101, 101, 102, 102, 102, 103, 103, 103, 103));
  });
  EXPECT_EQ(nccl::GetCounters().send_count, 16u);
  EXPECT_EQ(nccl::GetCounters().send_bytes, 4u * (1 + 2 + 3 + 4) * 4);
}

TEST_F(SimulatedNcclTest, CollectivesGiveAllRanksTheirResult) {
  RunRanks(3, [](Rank& self) {
    int32_t* const mine = self.Device({self.rank, 10 * self.rank});
    int32_t* const all = self.Device(std::vector<int32_t>(6, -1));
    ASSERT_NCCL(ncclAllGather(mine, all, 2, ncclInt32, self.comm, self.stream));
    EXPECT_THAT(self.Read(all, 6), ElementsAre(0, 0, 1, 10, 2, 20));
    ASSERT_NCCL(ncclAllReduce(mine, all, 2, ncclInt32, ncclSum, self.comm, self.stream));
    EXPECT_THAT(self.Read(all, 2), ElementsAre(3, 30));
    ASSERT_NCCL(ncclAllReduce(mine, all, 2, ncclInt32, ncclMin, self.comm, self.stream));
    EXPECT_THAT(self.Read(all, 2), ElementsAre(0, 0));
    ASSERT_NCCL(ncclBroadcast(mine, mine, 2, ncclInt32, 2, self.comm, self.stream));
    EXPECT_THAT(self.Read(mine, 2), ElementsAre(2, 20));
  });
}

TEST_F(SimulatedNcclTest, AReceiveWaitsForTheSendersStream) {
  RunRanks(2, [](Rank& self) {
    int32_t* const memory = self.Device({self.rank});
    if (self.rank == 0) {
      sim::StreamBlock block(self.stream);
      ASSERT_NCCL(ncclSend(memory, 1, ncclInt32, 1, self.comm, self.stream));
      int32_t* const later = self.Device({7});
      ASSERT_CUDA(cudaMemcpyAsync(memory, later, 4, cudaMemcpyDefault, self.stream));
    } else {
      ASSERT_NCCL(ncclRecv(memory, 1, ncclInt32, 0, self.comm, self.stream));
      EXPECT_THAT(self.Read(memory, 1), ElementsAre(0));
    }
  });
}

TEST_F(SimulatedNcclTest, SplitsByColorAndOrdersByKey) {
  RunRanks(4, [](Rank& self) {
    ncclComm_t part = nullptr;
    const int color = self.rank == 3 ? NCCL_SPLIT_NOCOLOR : self.rank % 2;
    ASSERT_NCCL(ncclCommSplit(self.comm, color, -self.rank, &part, nullptr));
    if (self.rank == 3) {
      EXPECT_EQ(part, nullptr);
      return;
    }
    int rank = -1;
    int size = 0;
    ASSERT_NCCL(ncclCommUserRank(part, &rank));
    ASSERT_NCCL(ncclCommCount(part, &size));
    EXPECT_EQ(size, self.rank == 1 ? 1 : 2);
    EXPECT_EQ(rank, self.rank == 0 ? 1 : 0);
    int32_t* const memory = self.Device({self.rank + 5});
    ASSERT_NCCL(ncclAllReduce(memory, memory, 1, ncclInt32, ncclSum, part, self.stream));
    EXPECT_THAT(self.Read(memory, 1), ElementsAre(self.rank == 1 ? 6 : 5 + 7));
    EXPECT_NCCL(ncclCommDestroy(part));
  });
}

TEST_F(SimulatedNcclTest, PollsExecuteNonBlockingCalls) {
  RunRanks(
      2,
      [](Rank& self) {
        int32_t* const sent = self.Device({self.rank});
        int32_t* const memory = self.Device({-1});
        const int peer = 1 - self.rank;
        ASSERT_NCCL(ncclGroupStart());
        EXPECT_NCCL(ncclSend(sent, 1, ncclInt32, peer, self.comm, self.stream));
        EXPECT_NCCL(ncclRecv(memory, 1, ncclInt32, peer, self.comm, self.stream));
        EXPECT_EQ(ncclGroupEnd(), ncclInProgress);
        EXPECT_EQ(ncclSend(memory, 1, ncclInt32, peer, self.comm, self.stream),
                  ncclInvalidArgument);
        EXPECT_CUDA(cudaStreamQuery(self.stream)) << "nothing must be enqueued yet";
        EXPECT_EQ(self.AsyncError(), ncclInProgress);
        EXPECT_EQ(self.AsyncError(), ncclSuccess);
        EXPECT_CUDA(cudaStreamSynchronize(self.stream));

        ncclComm_t part = nullptr;
        EXPECT_EQ(ncclCommSplit(self.comm, 0, 0, &part, nullptr), ncclInProgress);
        self.PollUntilDone();
        Rank in_part{.rank = self.rank, .comm = part, .stream = self.stream};
        in_part.PollUntilDone();
        EXPECT_EQ(ncclAllReduce(memory, memory, 1, ncclInt32, ncclSum, part, self.stream),
                  ncclInProgress);
        in_part.PollUntilDone();
        EXPECT_THAT(in_part.Read(memory, 1), ElementsAre(1));
        EXPECT_EQ(ncclCommFinalize(part), ncclInProgress);
        in_part.PollUntilDone();
        EXPECT_NCCL(ncclCommDestroy(part));
      },
      false);
}

TEST_F(SimulatedNcclTest, AbortEndsTheWaitForAMissingRank) {
  RunRanks(2, [](Rank& self) {
    if (self.rank == 1) return;
    int32_t* const memory = self.Device({1});
    ASSERT_NCCL(ncclRecv(memory, 1, ncclInt32, 1, self.comm, self.stream));
    EXPECT_EQ(cudaStreamQuery(self.stream), cudaErrorNotReady);
    EXPECT_EQ(self.AsyncError(), ncclSuccess);
    std::thread([&] { EXPECT_NCCL(ncclCommAbort(self.comm)); }).join();
    EXPECT_CUDA(cudaStreamSynchronize(self.stream));
    EXPECT_THAT(self.Read(memory, 1), ElementsAre(1));
    self.comm = nullptr;
  });
  EXPECT_EQ(nccl::GetCounters().abort_count, 1u);
}

TEST_F(SimulatedNcclTest, AnInitWithAMissingRankStaysInProgressUntilAborted) {
  ncclComm_t comm = nullptr;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id_, 0, &config), ncclInProgress);
  for (int i = 0; i < 5; ++i) {
    ncclResult_t state = ncclSuccess;
    ASSERT_NCCL(ncclCommGetAsyncError(comm, &state));
    EXPECT_EQ(state, ncclInProgress);
  }
  EXPECT_NCCL(ncclCommAbort(comm));
  ncclResult_t state = ncclSuccess;
  EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclInvalidArgument)
      << "the handle must be invalid";
}

TEST_F(SimulatedNcclTest, SizesThatDoNotMatchAreAnAsyncErrorOfBoth) {
  RunRanks(2, [](Rank& self) {
    int32_t* const memory = self.Device({1, 2});
    if (self.rank == 0) {
      ASSERT_NCCL(ncclSend(memory, 2, ncclInt32, 1, self.comm, self.stream));
    } else {
      ASSERT_NCCL(ncclRecv(memory, 1, ncclInt32, 0, self.comm, self.stream));
    }
    while (self.AsyncError() == ncclSuccess) std::this_thread::yield();
    EXPECT_EQ(self.AsyncError(), ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(self.comm), HasSubstr("do not agree"));
    EXPECT_EQ(cudaStreamQuery(self.stream), cudaErrorNotReady);
    EXPECT_NCCL(ncclCommAbort(self.comm));
    EXPECT_CUDA(cudaStreamSynchronize(self.stream));
    self.comm = nullptr;
  });
}

TEST_F(SimulatedNcclTest, ErrorsOccurWhereATestSetsThem) {
  RunRanks(1, [](Rank& self) {
    int32_t* const memory = self.Device({1});
    nccl::FailCall("ncclAllGather", 1, ncclSystemError);
    EXPECT_EQ(ncclAllGather(memory, memory, 1, ncclInt32, self.comm, self.stream), ncclSystemError);
    EXPECT_NCCL(ncclAllGather(memory, memory, 1, ncclInt32, self.comm, self.stream));
    nccl::SetAsyncError(self.comm, ncclRemoteError);
    EXPECT_EQ(self.AsyncError(), ncclRemoteError);
    EXPECT_EQ(ncclAllGather(memory, memory, 1, ncclInt32, self.comm, self.stream), ncclRemoteError);
  });
}

TEST_F(SimulatedNcclTest, RefusesMemoryRanksAndStreamsThatDoNotExist) {
  RunRanks(1, [](Rank& self) {
    int32_t* const memory = self.Device({1});
    int32_t on_host = 0;
    EXPECT_EQ(ncclSend(&on_host, 1, ncclInt32, 0, self.comm, self.stream), ncclInvalidArgument);
    EXPECT_EQ(ncclSend(memory, 1000, ncclInt32, 0, self.comm, self.stream), ncclInvalidArgument);
    EXPECT_EQ(ncclSend(memory, 1, ncclInt32, 1, self.comm, self.stream), ncclInvalidArgument);
    ASSERT_CUDA(cudaSetDevice(1));
    EXPECT_EQ(ncclSend(memory, 1, ncclInt32, 0, self.comm, nullptr), ncclUnhandledCudaError);
  });
}

TEST_F(SimulatedNcclTest, ALostDeviceEndsItsWaits) {
  RunRanks(2, [](Rank& self) {
    if (self.rank == 1) return;
    int32_t* const memory = self.Device({1});
    ASSERT_NCCL(ncclRecv(memory, 1, ncclInt32, 1, self.comm, self.stream));
    sim::LoseDevice(0, cudaErrorLaunchFailure);
    EXPECT_EQ(cudaStreamSynchronize(self.stream), cudaErrorLaunchFailure);
  });
}

}  // namespace
}  // namespace cairn::testing
