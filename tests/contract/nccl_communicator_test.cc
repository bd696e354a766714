// NCCL with ranks that are threads of one process, on a simulated CUDA runtime and a simulated
// NCCL.

#include "cuda/nccl_communicator.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "cuda/internal/cuda_call.h"
#include "cuda/internal/nccl_handle.h"
#include "tests/contract/communicator_contract.h"
#include "tests/support/result_matchers.h"
#include "tests/support/seeded_random.h"
#include "tests/support/simulated_cuda/simulated_cuda.h"
#include "tests/support/simulated_nccl/simulated_nccl.h"
#include "tests/support/thread_communicator.h"

namespace cairn::testing {
namespace {

using core::ByteTarget;
using core::ByteView;
using core::Communicator;
using cuda::ConnectNccl;
using cuda::NcclOptions;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kAmple = std::chrono::hours(1);  // longer than a test may take
constexpr milliseconds kShort(250);

/// Checks that a test has released everything.
class LeakCheck : public ::testing::EmptyTestEventListener {
  void OnTestEnd(const ::testing::TestInfo&) override {
    EXPECT_EQ(simulated_nccl::LiveCommunicatorCount(), 0u);
    EXPECT_EQ(simulated_cuda::GetLive(), simulated_cuda::Live{});
  }
};
const bool kLeaksAreChecked = [] {
  ::setenv("CAIRN_NCCL_LIBRARY", CAIRN_SIMULATED_NCCL, 1);
  ::testing::UnitTest::GetInstance()->listeners().Append(new LeakCheck);
  return true;
}();

/// A machine with one GPU per rank.
void ResetMachine(int device_count, int in_progress_polls = 1) {
  simulated_cuda::Reset({.device_count = device_count, .jitter_us = 20});
  simulated_nccl::Reset({.in_progress_polls = in_progress_polls});
}

/// Calls ConnectNccl for all ranks concurrently, and returns their results.
std::vector<Result<std::unique_ptr<Communicator>>> ConnectAll(
    const std::vector<NcclOptions>& options, milliseconds host_timeout = kAmple) {
  std::vector<Result<std::unique_ptr<Communicator>>> results(options.size());
  RunRanks(
      static_cast<int>(options.size()),
      [&](Communicator& host) {
        const auto rank = static_cast<size_t>(host.rank());
        results[rank] = ConnectNccl(host, options[rank]);
      },
      host_timeout);
  return results;
}

/// Checks that ConnectNccl fails with this error on all ranks.
void ExpectNoneConnects(const std::vector<NcclOptions>& options, ErrorCode code,
                        const std::string& words) {
  for (const auto& result : ConnectAll(options)) EXPECT_THAT(result, IsError(code, words));
}

std::vector<NcclOptions> OptionsOf(int world_size, milliseconds timeout,
                                   uint64_t buffer_bytes = 1 << 20) {
  std::vector<NcclOptions> options;
  for (int rank = 0; rank < world_size; ++rank) {
    options.push_back({.device = rank, .timeout = timeout, .buffer_bytes = buffer_bytes});
  }
  return options;
}

World Connect(const std::vector<NcclOptions>& options) {
  World world;
  for (auto& result : ConnectAll(options)) {
    EXPECT_TRUE(IsOk(result));
    if (!result) return {};
    world.push_back(*std::move(result));
  }
  return world;
}

World MakeNcclWorld(int world_size, milliseconds timeout) {
  ResetMachine(world_size);
  return Connect(OptionsOf(world_size, timeout));
}

INSTANTIATE_TEST_SUITE_P(SimulatedNccl, CommunicatorContractTest,
                         ::testing::ValuesIn(Worlds(MakeNcclWorld, {1, 2, 4, 7})), WorldName);
INSTANTIATE_TEST_SUITE_P(SimulatedNccl, CommunicatorDeadlineTest,
                         ::testing::ValuesIn(Worlds(MakeNcclWorld, {2, 4})), WorldName);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorDisagreementTest);

/// Memory of a device or of the host.
class TestMemory {
 public:
  TestMemory(uint64_t length_bytes, int device) : host_(length_bytes), device_(device) {
    if (device_ == core::kHostDevice || length_bytes == 0) return;
    const cuda::internal::DeviceScope scope(device);
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, length_bytes), cudaSuccess);
    on_device_ = static_cast<std::byte*>(memory);
  }
  TestMemory(TestMemory&& other) noexcept
      : host_(std::move(other.host_)),
        device_(other.device_),
        on_device_(std::exchange(other.on_device_, nullptr)) {}
  ~TestMemory() {
    if (on_device_ != nullptr) cudaFree(on_device_);
  }

  ByteTarget bytes() {
    return on_device_ != nullptr ? ByteTarget(on_device_, host_.size()) : ByteTarget(host_);
  }
  void Set(const std::vector<std::byte>& contents) {
    if (on_device_ != nullptr) {
      simulated_cuda::PokeDevice(on_device_, contents.data(), contents.size());
    } else {
      host_ = contents;
    }
  }
  std::vector<std::byte> Get() const {
    std::vector<std::byte> contents = host_;
    if (on_device_ != nullptr) {
      simulated_cuda::PeekDevice(contents.data(), on_device_, contents.size());
    }
    return contents;
  }

 private:
  std::vector<std::byte> host_;
  int device_;
  std::byte* on_device_ = nullptr;
};

/// Exchanges ranges of unequal lengths, some of them 0, between all ranks, in the memory that
/// `place(from, to, sends)` returns.
template <typename Place>
void ExchangeAll(World& world, SeededRandom& random, uint64_t max_bytes, const Place& place) {
  const size_t size = world.size();
  std::vector<std::vector<std::vector<std::byte>>> contents(size);
  std::vector<std::vector<TestMemory>> sent(size), received(size);
  for (size_t from = 0; from < size; ++from) {
    for (size_t to = 0; to < size; ++to) {
      auto& bytes =
          contents[from].emplace_back(random.Chance(0.3) ? 0 : random.Between(1, max_bytes));
      random.Fill(bytes);
      sent[from].emplace_back(bytes.size(), place(from, to, true)).Set(bytes);
    }
  }
  for (size_t to = 0; to < size; ++to) {
    for (size_t from = 0; from < size; ++from) {
      received[to].emplace_back(contents[from][to].size(), place(from, to, false));
    }
  }
  RunRanks(world, [&](Communicator& communicator) {
    const auto rank = static_cast<size_t>(communicator.rank());
    std::vector<ByteView> sources;
    std::vector<ByteTarget> targets;
    for (TestMemory& memory : sent[rank]) sources.emplace_back(memory.bytes());
    for (TestMemory& memory : received[rank]) targets.push_back(memory.bytes());
    CAIRN_EXPECT_OK(communicator.AllToAll(sources, targets));
  });
  for (size_t to = 0; to < size; ++to) {
    for (size_t from = 0; from < size; ++from) {
      EXPECT_EQ(received[to][from].Get(), contents[from][to]) << from << " to " << to;
    }
  }
}

TEST(NcclCommunicatorTest, SaysWhoseMemoryItTakes) {
  World world = MakeNcclWorld(2, kAmple);
  for (size_t rank = 0; rank < world.size(); ++rank) {
    EXPECT_EQ(world[rank]->device(), static_cast<int>(rank));
  }
}

TEST(NcclCommunicatorTest, DeviceMemoryGoesInPlace) {
  World world = MakeNcclWorld(4, kAmple);
  SeededRandom random;
  simulated_cuda::ResetCounters();
  ExchangeAll(world, random, 3 << 20, [](size_t from, size_t to, bool sends) {
    return static_cast<int>(sends ? from : to);
  });
  const simulated_cuda::Counters counters = simulated_cuda::GetCounters();
  EXPECT_EQ(counters.h2d_bytes + counters.d2h_bytes, 0u);
}

TEST(NcclCommunicatorTest, HostAndDeviceMemoryMeetInOneCall) {
  World world = MakeNcclWorld(4, kAmple);
  SeededRandom random;
  for (int round = 0; round < 5; ++round) {
    ExchangeAll(world, random, 1 << 20, [&](size_t from, size_t to, bool sends) {
      return random.Chance(0.5) ? core::kHostDevice : static_cast<int>(sends ? from : to);
    });
  }
}

TEST(NcclCommunicatorTest, BroadcastsBetweenHostAndDeviceMemory) {
  World world = MakeNcclWorld(3, kAmple);
  SeededRandom random;
  std::vector<std::byte> contents = random.Bytes((5 << 20) + 7);
  for (int on_device = 0; on_device < 8; ++on_device) {
    std::vector<TestMemory> memory;
    for (int rank = 0; rank < 3; ++rank) {
      memory.emplace_back(contents.size(), on_device >> rank & 1 ? rank : core::kHostDevice);
    }
    memory[1].Set(contents);
    RunRanks(world, [&](Communicator& communicator) {
      auto& mine = memory[static_cast<size_t>(communicator.rank())];
      CAIRN_EXPECT_OK(communicator.Broadcast(mine.bytes(), 1));
    });
    for (const TestMemory& each : memory) EXPECT_TRUE(each.Get() == contents) << on_device;
  }
}

TEST(NcclCommunicatorTest, TakesItsBuffersOnceAndNoMore) {
  constexpr uint64_t kBufferBytes = 300'000;
  ResetMachine(4);
  World world = Connect(OptionsOf(4, kAmple, kBufferBytes));
  ASSERT_EQ(world.size(), 4u);
  const simulated_cuda::Live live = simulated_cuda::GetLive();
  EXPECT_EQ(live.device_allocation_count, 4u);
  EXPECT_EQ(live.device_bytes, 4 * kBufferBytes);
  simulated_cuda::ResetCounters();
  SeededRandom random;
  ExchangeAll(world, random, 2 << 20, [](size_t, size_t, bool) { return core::kHostDevice; });
  EXPECT_EQ(simulated_cuda::GetCounters().device_malloc_count, 0u);
  EXPECT_EQ(simulated_cuda::GetCounters().device_synchronize_count, 0u);
  EXPECT_EQ(simulated_cuda::GetLive(), live);
}

TEST(NcclCommunicatorTest, ComesAfterWhatTheCallersStreamHolds) {
  ResetMachine(2);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  {
    auto options = OptionsOf(2, kAmple);
    options[0].stream = stream;
    World world = Connect(options);
    ASSERT_EQ(world.size(), 2u);
    std::vector<TestMemory> memory;
    for (int rank = 0; rank < 2; ++rank) memory.emplace_back(100'000, rank);
    simulated_cuda::StreamBlock block(stream);
    ASSERT_EQ(cudaMemsetAsync(memory[0].bytes().data(), 7, 100'000, stream), cudaSuccess);
    std::jthread release([&] {
      std::this_thread::sleep_for(milliseconds(30));  // usually until the call waits
      block.Release();
    });
    RunRanks(world, [&](Communicator& communicator) {
      auto& mine = memory[static_cast<size_t>(communicator.rank())];
      CAIRN_EXPECT_OK(communicator.Broadcast(mine.bytes(), 0));
    });
    EXPECT_EQ(memory[1].Get(), std::vector<std::byte>(100'000, std::byte{7}));
  }
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST(NcclCommunicatorTest, RefusesMemoryOfAnotherDeviceAndStaysUsable) {
  World world = MakeNcclWorld(2, kAmple);
  TestMemory memory(100, 1);
  EXPECT_THAT(world[0]->Broadcast(memory.bytes(), 0),
              IsError(ErrorCode::kInvalidArgument, "device 1"));
  RunRanks(world, [](Communicator& communicator) { CAIRN_EXPECT_OK(communicator.Barrier()); });
}

TEST(NcclCommunicatorTest, ADeadPeerEndsInAnErrorAtTheDeadline) {
  for (const bool on_device : {false, true}) {
    World world = MakeNcclWorld(3, kShort);
    RunRanks(world, [&](Communicator& communicator) {
      if (communicator.rank() == 1) return;  // dies here
      std::vector<TestMemory> memory;
      std::vector<ByteTarget> targets;
      for (int i = 0; i < 6; ++i) {
        memory.emplace_back(700'000, on_device ? communicator.rank() : core::kHostDevice);
      }
      for (TestMemory& each : memory) targets.push_back(each.bytes());
      const std::vector<ByteView> sources(targets.begin() + 3, targets.end());
      targets.resize(3);
      EXPECT_THAT(communicator.AllToAll(sources, targets),
                  IsError(ErrorCode::kUnavailable, "AllToAll, rank"));
      EXPECT_THAT(communicator.Barrier(), IsError(ErrorCode::kFailedPrecondition, "AllToAll"));
    });
    EXPECT_EQ(simulated_nccl::GetCounters().abort_count, 2u);
  }
}

TEST(NcclCommunicatorTest, AStopEndsCallsAndThoseOfParts) {
  for (const bool on_part : {false, true}) {
    ResetMachine(2);
    auto options = OptionsOf(2, kAmple);
    for (NcclOptions& each : options) each.stop = std::make_shared<cuda::NcclStop>();
    World world = Connect(options);
    ASSERT_EQ(world.size(), 2u);
    World parts(2);
    RunRanks(world, [&](Communicator& communicator) {
      CAIRN_ASSERT_OK_AND_ASSIGN(parts[static_cast<size_t>(communicator.rank())],
                                 communicator.Split(0, 0));
    });
    Communicator& waits = on_part ? *parts[0] : *world[0];
    std::jthread stopper([&] {
      std::this_thread::sleep_for(milliseconds(30));  // usually until the call waits
      options[0].stop->Request("rank 1 has left");
    });
    EXPECT_THAT(waits.Barrier(), IsError(ErrorCode::kUnavailable, "rank 1 has left"));
    EXPECT_THAT(
        world[0]->Barrier(),
        IsError(on_part ? ErrorCode::kUnavailable : ErrorCode::kFailedPrecondition, "left"));
    EXPECT_TRUE(options[0].stop->has_failed());
    EXPECT_FALSE(options[1].stop->has_failed());
    options[1].stop->Request("the test ends");
  }
}

TEST(ConnectNcclTest, AStopEndsConnecting) {
  ResetMachine(2, /*in_progress_polls=*/1'000'000'000);
  auto options = OptionsOf(2, kAmple);
  for (NcclOptions& each : options) {
    each.stop = std::make_shared<cuda::NcclStop>();
    each.stop->Request("interrupted");
  }
  ExpectNoneConnects(options, ErrorCode::kUnavailable, "connecting: interrupted");
  EXPECT_FALSE(options[0].stop->has_failed());
}

TEST(NcclCommunicatorTest, WhatNcclReportsInTheBackgroundEndsACallBeforeItsDeadline) {
  ResetMachine(2);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto* const nccl, cuda::internal::NcclLibrary::Open());
  ncclUniqueId id;
  ASSERT_EQ(nccl->GetUniqueId(&id), ncclSuccess);
  const auto deadline = steady_clock::now() + kAmple;
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const cuda::internal::DeviceScope scope(rank);
      CAIRN_ASSERT_OK_AND_ASSIGN(const auto handle,
                                 cuda::internal::NcclHandle::Init(*nccl, id, rank, 2, deadline));
      CAIRN_EXPECT_OK(handle->IsIdle("testing"));
      simulated_nccl::SetAsyncError(handle->get(), ncclRemoteError);
      EXPECT_THAT(handle->IsIdle("testing"),
                  IsError(ErrorCode::kUnavailable, "testing: NCCL reports remote process exited"));
      EXPECT_THAT(handle->Drain(ncclInProgress, "testing", deadline),
                  IsError(ErrorCode::kUnavailable, "an error that a test asked for"));
    });
  }
}

TEST(NcclCommunicatorTest, RanksThatDisagreeOnALengthAreToldByNccl) {
  World world = MakeNcclWorld(2, kAmple);
  RunRanks(world, [&](Communicator& communicator) {
    std::vector<std::byte> bytes(communicator.rank() == 0 ? 100'000 : 10);
    EXPECT_THAT(communicator.Scatter(std::vector<ByteView>{{}, bytes},
                                     communicator.rank() == 0 ? ByteTarget() : bytes, 0),
                IsError(ErrorCode::kUnavailable, "do not agree"));
  });
}

TEST(NcclCommunicatorTest, NoFailingCallOfNcclLeavesARankWaiting) {
  for (const char* function :
       {"ncclGroupStart", "ncclGroupEnd", "ncclSend", "ncclRecv", "ncclCommGetAsyncError"}) {
    SCOPED_TRACE(function);
    World world = MakeNcclWorld(3, kShort);
    simulated_nccl::FailCall(function, 2, ncclSystemError);
    std::atomic<int> failed = 0;
    RunRanks(world, [&](Communicator& communicator) {
      const std::vector<std::byte> mine(1000);
      std::vector<std::vector<std::byte>> all(3, mine);
      const auto done =
          communicator.AllGather(mine, std::vector<ByteTarget>(all.begin(), all.end()));
      if (done) return;
      EXPECT_THAT(done, IsError(ErrorCode::kUnavailable, "rank"));
      ++failed;
    });
    EXPECT_GE(failed, 1);
  }
}

TEST(NcclCommunicatorTest, ALostDeviceBreaksItsCommunicatorOnly) {
  World world = MakeNcclWorld(2, kShort);
  simulated_cuda::LoseDevice(0);
  RunRanks(world, [&](Communicator& communicator) {
    EXPECT_THAT(communicator.Barrier(), IsError(ErrorCode::kUnavailable, "Barrier, rank"));
  });
  world.clear();
  simulated_cuda::Reset();  // memory of a lost device cannot be released
}

TEST(ConnectNcclTest, OneRanksFailureIsEveryRanks) {
  ResetMachine(3);
  auto options = OptionsOf(3, kAmple);
  options[1].device = 3;
  ExpectNoneConnects(options, ErrorCode::kInvalidArgument,
                     "rank 1: there is no device 3; this process sees 3");
  options = OptionsOf(3, kAmple);
  options[2].buffer_bytes = 1 << 21;
  ExpectNoneConnects(options, ErrorCode::kInvalidArgument, "rank 2 gives buffer_bytes");
  simulated_cuda::FailCall("cudaMalloc", 1, cudaErrorMemoryAllocation);
  ExpectNoneConnects(OptionsOf(3, kAmple), ErrorCode::kResourceExhausted, "buffer_bytes = 1048576");
  simulated_nccl::FailCall("ncclGetUniqueId", 1, ncclSystemError);
  ExpectNoneConnects(OptionsOf(3, kAmple), ErrorCode::kUnavailable, "rank 0: creating an id");
}

TEST(ConnectNcclTest, RefusesOptionsThatMakeNoSense) {
  ResetMachine(1);
  auto options = OptionsOf(1, milliseconds(0));
  EXPECT_THAT(ConnectAll(options)[0], IsError(ErrorCode::kInvalidArgument, "timeout of 0"));
  options = OptionsOf(1, kAmple, 1000);
  EXPECT_THAT(ConnectAll(options)[0],
              IsError(ErrorCode::kInvalidArgument, "buffer_bytes of 1000 is too few for 1 ranks"));
  simulated_cuda::Reset({.device_count = 0});
  EXPECT_THAT(ConnectAll(OptionsOf(1, kAmple))[0],
              IsError(ErrorCode::kFailedPrecondition, "counting the GPUs"));
}

TEST(ConnectNcclTest, ConnectingThatFailsOrTakesTooLongIsAborted) {
  ResetMachine(2);
  simulated_nccl::FailCall("ncclCommInitRankConfig", 2, ncclSystemError);
  auto options = OptionsOf(2, kShort);
  ExpectNoneConnects(options, ErrorCode::kUnavailable, "connecting");
  EXPECT_EQ(simulated_nccl::LiveCommunicatorCount(), 0u);

  ResetMachine(2, /*in_progress_polls=*/1'000'000'000);
  ExpectNoneConnects(options, ErrorCode::kUnavailable, "connecting: the deadline passed");
  EXPECT_EQ(simulated_nccl::GetCounters().abort_count, 2u);
}

TEST(NcclLibraryTest, SaysWhichOneItIs) {
  EXPECT_EQ(cuda::internal::FormatNcclVersion(22809), "2.28.9");
  EXPECT_EQ(cuda::internal::FormatNcclVersion(2804), "2.8.4");
  CAIRN_ASSERT_OK_AND_ASSIGN(const std::string found, cuda::DescribeNccl());
  EXPECT_THAT(found, ::testing::HasSubstr("2.28.9 ("));
}

/// Prints the result of finding NCCL on stderr, in a separate process, because a library is never
/// closed.
[[noreturn]] void FindInThisProcess() {
  const auto found = cuda::DescribeNccl();
  fmt::print(stderr, "{}\n", found ? "found" : found.error().ToString());
  std::_Exit(found ? 0 : 1);
}

TEST(NcclLibraryDeathTest, WithoutOneTheErrorSaysWhatToInstall) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ::setenv("CAIRN_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
        FindInThisProcess();
      },
      ::testing::ExitedWithCode(1),
      "the library named by CAIRN_NCCL_LIBRARY cannot be opened.*install NCCL 2.18.1");
}

TEST(NcclLibraryDeathTest, AnOldOneIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        simulated_nccl::Reset({.version = NCCL_VERSION(2, 17, 1)});
        FindInThisProcess();
      },
      ::testing::ExitedWithCode(1), "is NCCL 2.17.1; install");
}

}  // namespace
}  // namespace cairn::testing
