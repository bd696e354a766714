// State-dict collectives on tensors in device memory produce the same bytes as in host memory, over
// a host communicator and over NCCL, both on the simulated runtime.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/collectives/state_dict_collectives.h"
#include "core/tensor/strided_copy.h"
#include "cuda/backend.h"
#include "cuda/nccl_communicator.h"
#include "tests/core/sharded_state.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"
#include "tests/support/seeded_random.h"
#include "tests/support/simulated_cuda/simulated_cuda.h"
#include "tests/support/simulated_nccl/simulated_nccl.h"
#include "tests/support/thread_communicator.h"

namespace cairn::core::testing {
namespace {

using cairn::testing::IsError;
using cairn::testing::RunRanks;
using cairn::testing::SeededRandom;
using cairn::testing::ThreadCommunicator;

constexpr uint64_t kBufferBytes = 5'000;

using World = std::vector<std::unique_ptr<Communicator>>;  // by rank

void OnEachRank(World& world, const std::function<void(Communicator&)>& body) {
  std::vector<std::jthread> ranks;
  for (const auto& communicator : world) {
    ranks.emplace_back([&body, &communicator] { body(*communicator); });
  }
}

/// Returns the bytes from the first element to the end of the last one.
uint64_t SpanBytes(const TensorView& view) {
  uint64_t last = 0;
  const auto strides = view.strides.empty() ? RowMajorStrides(view.shape) : view.strides;
  for (size_t d = 0; d < view.shape.size(); ++d) {
    if (view.shape[d] == 0) return 0;
    last += (view.shape[d] - 1) * strides[d];
  }
  return (last + 1) * schema::ElementBytes(view.dtype);
}

/// Calls `visit(TensorView&)` for every tensor and part of a state.
template <typename Visit>
void ForEachView(StateDict& state, const Visit& visit) {
  for (uint32_t i = 0; i < state.tensors.size(); ++i) {
    const auto found = state.shardings.find(i);
    if (found == state.shardings.end() || found->second.mesh != nullptr) {
      visit(state.tensors[i]);
    } else {
      for (auto& part : found->second.parts) visit(part.view);
    }
  }
}

/// A copy of a state in which some or all tensors are in device memory, with the same strides.
class DeviceCopy {
 public:
  DeviceCopy(const StateDict& host, int device, SeededRandom& random, double on_device = 0.8)
      : state(host) {
    CAIRN_EXPECT_OK(FindDeviceBackend());
    DeviceBackend* const backend = *FindDeviceBackend();
    ForEachView(state, [&](TensorView& view) {
      const uint64_t span_bytes = SpanBytes(view);
      if (!random.Chance(on_device) || span_bytes == 0) return;
      auto memory = backend->Allocate(device, span_bytes);
      EXPECT_TRUE(cairn::testing::IsOk(memory));
      simulated_cuda::PokeDevice(memory->data(), view.data, span_bytes);
      view.data = memory->data();
      view.device = device;
      memory_.push_back(*std::move(memory));
    });
  }

  StateDict state;

 private:
  std::vector<DeviceMemory> memory_;
};

/// Requires that no work on the device is running.
std::vector<std::byte> RowMajorBytes(TensorView view) {
  std::vector<std::byte> bytes(*TensorBytes(view.dtype, view.shape));
  std::vector<std::byte> on_host;
  if (view.device != kHostDevice && !bytes.empty()) {
    on_host.resize(SpanBytes(view));
    simulated_cuda::PeekDevice(on_host.data(), view.data, on_host.size());
    view.data = on_host.data();
    view.device = kHostDevice;
  }
  GatherBytes(view, 0, bytes);
  return bytes;
}

/// Compares all tensors and parts of two states.
void ExpectSameBytes(StateDict found, StateDict expected) {
  std::vector<std::vector<std::byte>> bytes[2];
  ForEachView(found, [&](TensorView& view) { bytes[0].push_back(RowMajorBytes(view)); });
  ForEachView(expected, [&](TensorView& view) { bytes[1].push_back(RowMajorBytes(view)); });
  ASSERT_EQ(bytes[0].size(), bytes[1].size());
  for (size_t i = 0; i < bytes[0].size(); ++i) EXPECT_TRUE(bytes[0][i] == bytes[1][i]) << i;
}

struct Param {
  bool nccl = false;
  int world_size = 1;

  friend void PrintTo(const Param& param, std::ostream* out) {
    *out << param.world_size << (param.nccl ? " ranks on NCCL" : " ranks on host memory");
  }
};

class DeviceStateDictTest : public ::testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    const int size = GetParam().world_size;
    const auto shared =
        std::make_shared<ThreadCommunicator::Shared>(size, std::chrono::seconds(300));
    for (int rank = 0; rank < size; ++rank) {
      hosts_.push_back(std::make_unique<ThreadCommunicator>(shared, rank));
    }
    world_ = &hosts_;
    if (!GetParam().nccl) return;
    nccl_.resize(static_cast<size_t>(size));
    OnEachRank(hosts_, [&](Communicator& host) {
      CAIRN_ASSERT_OK_AND_ASSIGN(
          nccl_[static_cast<size_t>(host.rank())],
          cuda::ConnectNccl(host, {.device = host.rank(), .buffer_bytes = 1 << 20}));
    });
    world_ = &nccl_;
  }

  uint32_t size() const { return static_cast<uint32_t>(GetParam().world_size); }

  /// Calls `body(ranks, tensors)` on each rank. `tensors`: null if one communicator is used for
  /// everything, or NCCL for tensors only.
  void OnEachRankWith(bool two_communicators,
                      const std::function<void(Communicator&, Communicator*)>& body) {
    OnEachRank(*world_, [&](Communicator& communicator) {
      const auto rank = static_cast<size_t>(communicator.rank());
      two_communicators ? body(*hosts_[rank], &communicator) : body(communicator, nullptr);
    });
  }
  bool CanDivideWork(SeededRandom& random) const { return GetParam().nccl && random.Chance(0.5); }

  /// Tensors, their shardings, and the shards of each rank.
  struct Case {
    Case(uint32_t ranks, SeededRandom& random)
        : globals(RandomTensors(6, random)), layouts(RandomLayouts(globals, ranks, random)) {
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        states.push_back(std::make_unique<RankState>(globals, layouts, rank, random.Between(0, 2)));
        states.back()->FillFrom(globals, rank);
      }
    }
    StateDict Full() const {
      StateDict full;
      for (const GlobalTensor& global : globals) {
        full.root().Tensor(global.fqn, {.dtype = global.tensor.dtype,
                                        .shape = global.tensor.shape,
                                        .data = global.tensor.bytes.data()});
      }
      return full;
    }
    std::vector<GlobalTensor> globals;
    std::vector<Layout> layouts;
    std::vector<std::unique_ptr<RankState>> states;
  };

  /// Zeroed shards of each rank, some in device memory and some in host memory.
  struct Targets {
    Targets(const Case& with, uint32_t ranks, SeededRandom& random) {
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        memory.push_back(std::make_unique<RankState>(with.globals, with.layouts, rank));
        copies.push_back(
            std::make_unique<DeviceCopy>(memory[rank]->state, static_cast<int>(rank), random));
      }
    }
    std::vector<std::unique_ptr<RankState>> memory;
    std::vector<std::unique_ptr<DeviceCopy>> copies;
  };

  World hosts_;
  World nccl_;
  World* world_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(, DeviceStateDictTest,
                         ::testing::Values(Param{false, 1}, Param{false, 3}, Param{true, 1},
                                           Param{true, 2}, Param{true, 4}),
                         [](const auto& info) {
                           return (info.param.nccl ? "NcclOf" : "HostOf") +
                                  std::to_string(info.param.world_size);
                         });

TEST_P(DeviceStateDictTest, GathersWhatHostsGather) {
  SeededRandom random;
  for (int round = 0; round < 5; ++round) {
    const Case with(size(), random);
    const std::vector<Layout> whole(with.globals.size(), Layout{.plain = true});
    std::vector<std::unique_ptr<RankState>> memory;
    std::vector<std::unique_ptr<DeviceCopy>> copies, targets;
    for (uint32_t rank = 0; rank < size(); ++rank) {
      const auto device = static_cast<int>(rank);
      copies.push_back(std::make_unique<DeviceCopy>(with.states[rank]->state, device, random));
      memory.push_back(
          std::make_unique<RankState>(with.globals, whole, rank, random.Between(0, 2)));
      targets.push_back(std::make_unique<DeviceCopy>(memory[rank]->state, device, random));
    }
    OnEachRankWith(CanDivideWork(random), [&](Communicator& communicator, Communicator* tensors) {
      const auto rank = static_cast<size_t>(communicator.rank());
      StateDict& target = targets[rank]->state;
      CAIRN_ASSERT_OK(
          GatherStateDict(copies[rank]->state, StateTarget(target), communicator,
                          {.buffer_bytes = kBufferBytes, .tensor_communicator = tensors}));
      for (size_t i = 0; i < with.globals.size(); ++i) {
        if (with.layouts[i].plain) continue;
        EXPECT_TRUE(RowMajorBytes(target.tensors[i]) == with.globals[i].tensor.bytes) << i;
      }
    });
  }
}

TEST_P(DeviceStateDictTest, BroadcastsIntoWhatHostsGet) {
  SeededRandom random;
  for (int round = 0; round < 5; ++round) {
    const Case with(size(), random);
    const StateDict host_full = with.Full();
    const DeviceCopy full(host_full, 0, random);
    Targets targets(with, size(), random);
    OnEachRankWith(CanDivideWork(random), [&](Communicator& communicator, Communicator* tensors) {
      const auto rank = static_cast<size_t>(communicator.rank());
      StateDict& target = targets.copies[rank]->state;
      CAIRN_ASSERT_OK(BroadcastStateDict(
          rank == 0 ? full.state : WithoutMemory(host_full), StateTarget(target), communicator,
          {.buffer_bytes = kBufferBytes, .tensor_communicator = tensors}));
      ExpectSameBytes(target, with.states[rank]->state);
    });
  }
}

TEST_P(DeviceStateDictTest, DistributesWhatHostsCut) {
  SeededRandom random;
  const Case with(size(), random);
  const StateDict host_full = with.Full();
  Targets targets(with, size(), random);
  for (uint32_t rank = 0; rank < size(); ++rank) {
    const DeviceCopy full(host_full, static_cast<int>(rank), random);
    StateDict& target = targets.copies[rank]->state;
    CAIRN_ASSERT_OK(DistributeStateDict(full.state, StateTarget(target), rank));
    ExpectSameBytes(target, with.states[rank]->state);
  }
}

TEST_P(DeviceStateDictTest, LoadsReadOnceAndPassOnToDevices) {
  SeededRandom random;
  const Case with(size(), random);
  const cairn::testing::ScopedTempDir dir;
  std::atomic<uint64_t> read_bytes[2] = {};  // each rank reads everything; bytes are read once
  OnEachRank(hosts_, [&](Communicator& host) {
    CAIRN_ASSERT_OK_AND_ASSIGN(
        const auto store,
        CheckpointStore::OpenShared(dir.path() + "/store", kv::OpenMode::kWrite, host));
    SaveOn(*store, 1, with.globals, with.layouts, {});
    CAIRN_EXPECT_OK(store->Close());
  });
  for (const bool read_once : {false, true}) {
    std::vector<std::unique_ptr<DeviceCopy>> copies;
    for (uint32_t rank = 0; rank < size(); ++rank) {
      const RankState empty(with.globals, with.layouts, rank, 1);
      copies.push_back(
          std::make_unique<DeviceCopy>(empty.state, static_cast<int>(rank), random, 1.0));
    }
    OnEachRankWith(CanDivideWork(random), [&](Communicator& communicator, Communicator* tensors) {
      const auto rank = static_cast<size_t>(communicator.rank());
      StateDict& state = copies[rank]->state;
      CAIRN_ASSERT_OK_AND_ASSIGN(
          const auto store,
          CheckpointStore::OpenShared(dir.path() + "/store", kv::OpenMode::kRead, communicator));
      std::vector<ShardTarget> targets;
      for (uint32_t i = 0; i < with.globals.size(); ++i) {
        const auto sharding = state.shardings.find(i);
        targets.push_back(
            {.fqn = with.globals[i].fqn,
             .sharding = sharding == state.shardings.end() ? nullptr : &sharding->second,
             .local = StateTarget(state).Writable(state.tensors[i])});
      }
      CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, store->Steps());
      CAIRN_ASSERT_OK_AND_ASSIGN(const LoadReport report,
                                 store->LoadShards(steps[0], targets,
                                                   {.read_once = read_once,
                                                    .buffer_bytes = kBufferBytes,
                                                    .tensor_communicator = tensors}));
      read_bytes[read_once ? 1 : 0] += report.bytes_read;
      ExpectSameBytes(state, with.states[rank]->state);
    });
  }
  EXPECT_LE(read_bytes[1], read_bytes[0]);
}

TEST(DeviceStateDictErrorTest, NoDeviceMemoryForBuffersFailsOnAllRanks) {
  SeededRandom random;
  const auto memory = std::vector<std::byte>(64);
  StateDict host;
  host.root().Tensor("a", {.dtype = DType::kUInt8, .shape = {64}, .data = memory.data()});
  std::vector<std::unique_ptr<DeviceCopy>> copies;
  for (int rank = 0; rank < 2; ++rank) {
    copies.push_back(std::make_unique<DeviceCopy>(host, rank, random, 1.0));
  }
  World nccl(2);
  RunRanks(2, [&](Communicator& thread) {
    const auto rank = static_cast<size_t>(thread.rank());
    CAIRN_ASSERT_OK_AND_ASSIGN(
        nccl[rank], cuda::ConnectNccl(thread, {.device = thread.rank(), .buffer_bytes = 1 << 20}));
    StateDict whole;
    EXPECT_THAT(GatherStateDict(copies[rank]->state, StateTarget(whole), *nccl[rank],
                                {.buffer_bytes = uint64_t{1} << 40}),
                IsError(ErrorCode::kResourceExhausted, "rank 0"));
  });
}

TEST(DeviceStateDictRootTest, BroadcastFillsWhatOnlyTheRootHas) {
  SeededRandom random;
  std::vector<std::byte> bytes(1000);
  random.Fill(bytes);
  StateDict host;
  host.root().Tensor("a", {.dtype = DType::kUInt8, .shape = {1000}, .data = bytes.data()});
  const DeviceCopy full(host, 0, random, 1.0);
  const std::vector<std::byte> zeros(1000);
  StateDict blank = host;
  blank.tensors[0].data = zeros.data();
  DeviceCopy target(blank, 0, random, 1.0);
  RunRanks(2, [&](Communicator& thread) {
    const bool is_root = thread.rank() == 0;
    StateDict nothing;
    CAIRN_ASSERT_OK(BroadcastStateDict(is_root ? full.state : WithoutMemory(host),
                                       StateTarget(is_root ? target.state : nothing), thread));
  });
  ExpectSameBytes(target.state, host);
}

/// Lets each call of the runtime fail in turn. No running copy may then access freed memory: that
/// would lose the device, or be a data race.
class DeviceStateDictFaultTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kHalf = 300'000;  // copied directly, not packed

  static constexpr uint64_t kStrided = 100 * 128;

  DeviceStateDictFaultTest() : bytes_(kStrided + 2 * kHalf), target_bytes_(bytes_.size()) {
    random_.Fill(bytes_);
  }

  /// A state with the memory `bytes`, whose tensors are complete or in two parts.
  static StateDict StateIn(const std::vector<std::byte>& bytes, bool in_parts) {
    StateDict state;
    const auto add = [&](const char* fqn, uint64_t at, const Shape& shape, const Shape& strides) {
      TensorView view{DType::kUInt8, shape, strides, bytes.data() + at};
      if (!in_parts) return state.root().Tensor(fqn, view);
      Sharding halves{.global_shape = shape};
      view.shape[0] /= 2;
      for (const uint64_t row : {uint64_t{0}, view.shape[0]}) {
        Box box{.offsets = Shape(shape.size()), .sizes = view.shape};
        box.offsets[0] = row;
        halves.parts.push_back({.box = std::move(box), .view = view});
        view.data += view.shape[0] * strides[0];
      }
      state.root().Sharded(fqn, {.dtype = DType::kUInt8, .shape = {}}, std::move(halves));
    };
    add("strided", 0, {100, 60}, {128, 1});
    add("halves", kStrided, {2 * kHalf}, {1});
    return state;
  }

  template <typename Work>
  static void FailEachCall(const StateDict& target, const StateDict& expected, const Work& work) {
    uint64_t failed = 0;
    for (bool happened = true; happened;) {
      const uint64_t nth = ++failed;
      ASSERT_LT(nth, 1000u);
      simulated_cuda::FailCall("*", nth, cudaErrorInvalidValue);
      const Result<void> result = work();
      happened = simulated_cuda::FaultHappened("*");
      simulated_cuda::ClearFaults();
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << "when call " << nth << " had failed";
      ASSERT_TRUE(happened || cairn::testing::IsOk(result));
      if (result) ExpectSameBytes(target, expected);
    }
    EXPECT_GT(failed, 10u);
  }

  SeededRandom random_;
  std::vector<std::byte> bytes_;
  std::vector<std::byte> target_bytes_;
};

TEST_F(DeviceStateDictFaultTest, AnyCallOfAGatherMayFail) {
  const DeviceCopy parts(StateIn(bytes_, true), 0, random_, 1.0);
  for (const double on_device : {0.0, 1.0}) {
    DeviceCopy whole(StateIn(target_bytes_, false), 0, random_, on_device);
    RunRanks(1, [&](Communicator& alone) {
      FailEachCall(whole.state, StateIn(bytes_, false), [&] {
        return GatherStateDict(parts.state, StateTarget(whole.state), alone,
                               {.buffer_bytes = 6 * kHalf});
      });
    });
  }
}

TEST_F(DeviceStateDictFaultTest, AnyCallOfABroadcastMayFail) {
  const DeviceCopy whole(StateIn(bytes_, false), 0, random_, 1.0);
  DeviceCopy parts(StateIn(target_bytes_, true), 0, random_, 1.0);
  RunRanks(1, [&](Communicator& alone) {
    FailEachCall(parts.state, StateIn(bytes_, true),
                 [&] { return BroadcastStateDict(whole.state, StateTarget(parts.state), alone); });
  });
}

}  // namespace
}  // namespace cairn::core::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  ::setenv("CAIRN_NCCL_LIBRARY", CAIRN_SIMULATED_NCCL, 1);
  cairn::simulated_cuda::Reset({.device_count = 4, .jitter_us = 10});
  cairn::cuda::Register();
  return RUN_ALL_TESTS();
}
