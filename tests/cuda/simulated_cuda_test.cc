// The simulated CUDA runtime has the properties that tests of the CUDA layer depend on.
#include "tests/support/simulated_cuda/simulated_cuda.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cuda/simulated_cuda_test_kernels.h"

namespace cairn::testing {
namespace {

namespace sim = simulated_cuda;
using ::testing::Each;

#define ASSERT_CUDA(call) ASSERT_EQ(call, cudaSuccess)
#define EXPECT_CUDA(call) EXPECT_EQ(call, cudaSuccess)

class SimulatedCudaTest : public ::testing::Test {
 protected:
  void SetUp() override { sim::Reset(); }
  void TearDown() override { sim::Reset(); }

  static cudaStream_t MakeStream() {
    cudaStream_t stream = nullptr;
    EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
  }
  template <typename T>
  static T* Device(uint64_t count) {
    void* memory = nullptr;
    EXPECT_CUDA(cudaMalloc(&memory, count * sizeof(T)));
    return static_cast<T*>(memory);
  }
  template <typename T>
  static T* Pinned(uint64_t count) {
    void* memory = nullptr;
    EXPECT_CUDA(cudaHostAlloc(&memory, count * sizeof(T), cudaHostAllocDefault));
    return static_cast<T*>(memory);
  }
  template <typename T>
  static std::vector<T> Peek(const T* device, uint64_t count) {
    std::vector<T> values(count);
    sim::PeekDevice(values.data(), device, count * sizeof(T));
    return values;
  }
};

using SimulatedCudaDeathTest = SimulatedCudaTest;

// Copies a value through two streams, with or without a wait between them. Returns true if the
// value arrived.
bool CopyThroughTwoStreams(uint64_t seed, bool with_wait) {
  sim::Reset({.jitter_us = 2000, .jitter_seed = seed});
  cudaStream_t first = nullptr;
  cudaStream_t second = nullptr;
  cudaEvent_t event = nullptr;
  void* memory = nullptr;
  void* seen = nullptr;
  EXPECT_CUDA(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  EXPECT_CUDA(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  EXPECT_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  EXPECT_CUDA(cudaMalloc(&memory, 4));
  EXPECT_CUDA(cudaHostAlloc(&seen, 4, 0));
  EXPECT_CUDA(cudaMemsetAsync(memory, 7, 4, first));
  EXPECT_CUDA(cudaEventRecord(event, first));
  if (with_wait) {
    EXPECT_CUDA(cudaStreamWaitEvent(second, event, 0));
  }
  EXPECT_CUDA(cudaMemcpyAsync(seen, memory, 4, cudaMemcpyDeviceToHost, second));
  EXPECT_CUDA(cudaStreamSynchronize(second));
  return *static_cast<uint32_t*>(seen) == 0x07070707u;
}

TEST_F(SimulatedCudaTest, JitterShowsAMissingWait) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer reports the missing wait itself";
#endif
  int found_count = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    EXPECT_TRUE(CopyThroughTwoStreams(seed, true)) << "seed " << seed;
    found_count += CopyThroughTwoStreams(seed, false) ? 0 : 1;
  }

  EXPECT_GT(found_count, 0);
}

TEST_F(SimulatedCudaTest, RefusesCopiesBeyondAnAllocationAndOfFreedMemory) {
  auto* const memory = Device<char>(1000);
  auto* const pinned = Pinned<char>(1000);

  EXPECT_CUDA(cudaMemcpy(pinned, memory, 1000, cudaMemcpyDeviceToHost));
  EXPECT_EQ(cudaMemcpy(pinned, memory, 1001, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(pinned + 1, memory, 1000, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(memory, pinned, 10, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(memory + 999, 0, 2), cudaErrorInvalidValue);
  ASSERT_CUDA(cudaFree(memory));
  EXPECT_EQ(cudaMemcpy(pinned, memory, 10, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(memory), cudaErrorInvalidValue);
}

TEST_F(SimulatedCudaTest, CountsPageableCopiesAndImplicitWaits) {
  auto* const memory = Device<char>(4096);
  std::vector<char> host(4096);
  ASSERT_CUDA(cudaMemcpy(host.data(), memory, 100, cudaMemcpyDeviceToHost));
  ASSERT_CUDA(cudaHostRegister(host.data(), 4096, cudaHostRegisterDefault));
  ASSERT_CUDA(cudaMemcpy(host.data(), memory, 200, cudaMemcpyDeviceToHost));
  ASSERT_CUDA(cudaFree(memory));
  EXPECT_EQ(sim::GetCounters().pageable_count, 1u);
  EXPECT_EQ(sim::GetCounters().d2h_bytes, 300u);
  EXPECT_EQ(sim::GetCounters().implicit_synchronize_count, 1u);
  EXPECT_EQ(sim::GetCounters().device_synchronize_count, 0u);
}

TEST_F(SimulatedCudaTest, FreesInTheOrderOfTheStream) {
  sim::Reset({.device_memory_bytes = 1000});
  const cudaStream_t stream = MakeStream();
  void* first = nullptr;
  void* second = nullptr;
  void* third = nullptr;
  ASSERT_CUDA(cudaMallocAsync(&first, 800, stream));
  sim::StreamBlock block(stream);
  ASSERT_CUDA(cudaFreeAsync(first, stream));

  EXPECT_EQ(sim::GetLive().device_allocation_count, 1u);
  EXPECT_EQ(cudaMalloc(&third, 800), cudaErrorMemoryAllocation) << "not free yet for other streams";
  EXPECT_CUDA(cudaMallocAsync(&second, 800, stream)) << "free for this stream when it runs";
  block.Release();
  ASSERT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(sim::GetLive().device_allocation_count, 1u);
  EXPECT_CUDA(cudaFree(second));
}

TEST_F(SimulatedCudaTest, ALostDeviceFailsEverythingAndLetsWaitsEnd) {
  sim::Reset({.device_count = 2});
  const cudaStream_t stream = MakeStream();
  auto* const memory = Device<uint32_t>(1);
  const sim::StreamBlock block(stream);
  ASSERT_CUDA(cudaMemsetAsync(memory, 1, 4, stream));
  block.WaitUntilReached();

  sim::LoseDevice(0, cudaErrorLaunchFailure);

  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaMemset(memory, 0, 4), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure) << "sticky";
  EXPECT_THAT(Peek(memory, 1), Each(0xA5A5A5A5u)) << "enqueued work is not executed";
  EXPECT_EQ(cudaStreamDestroy(stream), cudaErrorLaunchFailure);
  EXPECT_EQ(sim::GetLive().stream_count, 0u);
  ASSERT_CUDA(cudaSetDevice(1));
  EXPECT_CUDA(cudaDeviceSynchronize());
}

// Sanitizers report the invalid address themselves.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_F(SimulatedCudaTest, ACallThatWaitsInvalidatesACaptureUnlessTheThreadAllowsIt) {
  cudaStream_t const stream = MakeStream();
  const auto capture = [&](cudaStreamCaptureMode mode) {
    EXPECT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    cudaError_t waited = cudaSuccess;
    std::thread([&] {
      EXPECT_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
      waited = cudaDeviceSynchronize();
    }).join();
    cudaGraph_t graph = nullptr;
    return std::pair(waited, cudaStreamEndCapture(stream, &graph));
  };
  EXPECT_EQ(capture(cudaStreamCaptureModeRelaxed), std::pair(cudaSuccess, cudaSuccess));
  EXPECT_EQ(capture(cudaStreamCaptureModeGlobal),
            std::pair(cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureInvalidated));
}

TEST_F(SimulatedCudaTest, AKernelAtABadAddressLosesTheDevice) {
  auto* const memory = Device<uint32_t>(1);

  ASSERT_CUDA(LaunchStore(reinterpret_cast<uint32_t*>(0x1000), 1, nullptr));

  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaMemset(memory, 0, 4), cudaErrorIllegalAddress);
  sim::Reset();
  auto* const again = Device<uint32_t>(1);
  ASSERT_CUDA(LaunchStore(again, 5, nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(Peek(again, 1)[0], 5u);
}

TEST_F(SimulatedCudaDeathTest, AHostThatAccessesDeviceMemoryCrashes) {
  auto* const memory = Device<uint32_t>(1);
  EXPECT_DEATH(*static_cast<volatile uint32_t*>(memory) = 1, "");
}

TEST_F(SimulatedCudaDeathTest, AWriteBeyondAnAllocationIsFoundWhenItIsFreed) {
  EXPECT_DEATH(
      {
        auto* const memory = Device<uint32_t>(3);
        EXPECT_CUDA(LaunchStore(memory + 3, 1, nullptr));
        cudaFree(memory);
      },
      "wrote beyond the end");
}
#endif

TEST_F(SimulatedCudaDeathTest, ABlockThatHangsEndsTheProcessWithALocation) {
  EXPECT_DEATH(
      {
        EXPECT_CUDA(LaunchHang(nullptr));
        cudaDeviceSynchronize();
      },
      "hangs");
}

}  // namespace
}  // namespace cairn::testing
