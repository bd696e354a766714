// Gather, broadcast and distribute: thousands of random states on ranks that are threads, and
// errors for invalid arguments.

#include "core/collectives/state_dict_collectives.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/ranks/status_agreement.h"
#include "tests/core/collectives/sharded_collectives.h"
#include "tests/support/checked_communicator.h"
#include "tests/support/result_matchers.h"
#include "tests/support/thread_communicator.h"

namespace cairn::core {
namespace {

using cairn::testing::CheckedCommunicator;
using cairn::testing::IsError;
using cairn::testing::RunRanks;
using cairn::testing::SeededRandom;
using testing::BroadcastScenario;
using ::testing::ElementsAre;
using testing::GatherScenario;
using ::testing::HasSubstr;

/// Calls `run(scenario, world_size)` with random scenarios of up to 8 ranks.
template <typename Scenario, typename Run>
void ForRandomScenarios(int rounds, const Run& run) {
  SeededRandom random;
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(round);
    const auto world_size = static_cast<uint32_t>(random.Between(1, 8));
    Scenario scenario(random, world_size);
    run(scenario, world_size);
    ASSERT_FALSE(::testing::Test::HasFailure());  // prints the seed; the threads cannot
  }
}

constexpr auto kOnRanks = [](auto& scenario, uint32_t world_size) {
  RunRanks(static_cast<int>(world_size), [&](Communicator& below) {
    CheckedCommunicator communicator(below);
    scenario.RunRank(communicator);
  });
};

TEST(GatherStateDictTest, RandomShardsBecomeWhole) {
  ForRandomScenarios<GatherScenario>(1000, kOnRanks);
}

TEST(BroadcastStateDictTest, RandomTargetsGetTheirShards) {
  ForRandomScenarios<BroadcastScenario>(1000, kOnRanks);
}

TEST(DistributeStateDictTest, RandomTargetsGetTheirShards) {
  ForRandomScenarios<BroadcastScenario>(2000, [](auto& scenario, uint32_t world_size) {
    for (uint32_t rank = 0; rank < world_size; ++rank) scenario.DistributeOn(rank);
  });
}

std::shared_ptr<const DeviceMesh> MeshOf(uint32_t ranks) {
  return std::make_shared<const DeviceMesh>(*DeviceMesh::Make({{"dp", ranks}}));
}

// 8 floats, of which each of 4 ranks holds 2, and memory for all of them.
struct FourShards {
  explicit FourShards(const Communicator& communicator)
      : local(static_cast<size_t>(2), static_cast<float>(communicator.rank())) {
    state.root().Map("model").Sharded(
        "w", Floats({2}, local),
        {.global_shape = {8}, .mesh = MeshOf(4), .placements = {Placement::Shard(0)}, .parts = {}});
    whole.root().Map("model").Tensor("w", Floats({8}, gathered));
  }
  static TensorView Floats(Shape shape, const std::vector<float>& memory) {
    return {.dtype = DType::kFloat32,
            .shape = std::move(shape),
            .data = reinterpret_cast<const std::byte*>(memory.data())};
  }
  Result<void> Gather(Communicator& communicator, const CollectiveOptions& options = {}) {
    return GatherStateDict(state, StateTarget(whole), communicator, options);
  }
  TensorView& view() { return state.tensors[0]; }
  Sharding& sharding() { return state.shardings.at(0); }
  std::vector<float> local;
  std::vector<float> gathered = std::vector<float>(8);
  StateDict state;
  StateDict whole;
};

using Call = std::function<Result<void>(Communicator&, FourShards&)>;

// Runs `call` on 4 ranks, which must all return the same error.
void ExpectOneError(const Call& call, ErrorCode code, const std::vector<std::string>& says) {
  std::array<std::string, 4> errors;
  RunRanks(4, [&](Communicator& communicator) {
    FourShards shards(communicator);
    const auto result = call(communicator, shards);
    ASSERT_FALSE(result) << "on rank " << communicator.rank();
    EXPECT_EQ(result.error().code, code);
    errors[static_cast<size_t>(communicator.rank())] = result.error().ToString();
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, errors[0]);
    for (const std::string& text : says) EXPECT_THAT(error, HasSubstr(text));
  }
}

// Also requires that the error names the tensor.
void ExpectTensorError(const Call& call, std::vector<std::string> says) {
  says.emplace_back("model.w");
  ExpectOneError(call, ErrorCode::kInvalidArgument, says);
}

// Gathers states that `spoil` has changed on rank 2, and expects the same error on all ranks.
void ExpectGatherFails(const std::function<void(FourShards&)>& spoil,
                       const std::vector<std::string>& says, int receiver = 0) {
  ExpectTensorError(
      [&](Communicator& communicator, FourShards& shards) {
        if (communicator.rank() == 2) spoil(shards);
        auto result = shards.Gather(communicator, {.ranks_only = {receiver}});
        EXPECT_EQ(shards.gathered, std::vector<float>(8));
        return result;
      },
      says);
}

TEST(GatherStateDictTest, AllRanksReportTheBadShardOfOne) {
  ExpectGatherFails([](FourShards& shards) { shards.view().shape = {3}; },
                    {"rank 2: ", "local tensor has shape [3]"});
  ExpectGatherFails([](FourShards& shards) { shards.view().data = nullptr; }, {"rank 2: "});
  ExpectGatherFails([](FourShards& shards) { shards.view().strides = {1, 1}; }, {"rank 2: "});
  ExpectGatherFails([](FourShards& shards) { shards.view().dtype = DType::kUnknown; },
                    {"rank 2: "});
  ExpectGatherFails(
      [](FourShards& shards) { shards.sharding().placements = {Placement::Shard(1)}; },
      {"rank 2: ", "divides dimension 1"});
  ExpectGatherFails([](FourShards& shards) { shards.state.root().Value("model.w", int64_t{1}); },
                    {"rank 2: "});
}

TEST(GatherStateDictTest, RanksThatDisagreeAreNamed) {
  ExpectGatherFails([](FourShards& shards) { shards.view().dtype = DType::kInt32; },
                    {"ranks 0 and 2", "float32 [8] and int32 [8]"});
  ExpectGatherFails([](FourShards& shards) { shards.sharding().global_shape = {7}; },
                    {"ranks 0 and 2", "[8] and float32 [7]"});
  ExpectGatherFails(
      [](FourShards& shards) { shards.sharding().placements = {Placement::StridedShard(0, 1)}; },
      {"ranks 0 and 2", "with different placements"});
  ExpectGatherFails([](FourShards& shards) { shards.state.shardings.clear(); },
                    {"ranks 0 and 2", "sharded over a mesh and not sharded"});
  ExpectGatherFails([](FourShards& shards) { shards.state = StateDict(); },
                    {"rank 2 is in the tensor's mesh"});
  ExpectGatherFails(
      [](FourShards& shards) {
        shards.sharding().mesh =
            std::make_shared<const DeviceMesh>(*DeviceMesh::Make({{"dp", 4}}, {1, 0, 2, 3}));
      },
      {"ranks 0 and 2", "on different meshes"});
}

TEST(GatherStateDictTest, ReceiversNeedMemoryForTheCompleteTensors) {
  const auto expect = [](const std::function<void(StateDict&)>& spoil, const std::string& says) {
    ExpectGatherFails([&](FourShards& shards) { spoil(shards.whole); }, {"rank 2: ", says}, 2);
  };
  expect([](StateDict& whole) { whole = StateDict(); }, "no memory is given");
  expect([](StateDict& whole) { whole.tensors[0].data = nullptr; }, "null pointer");
  expect([](StateDict& whole) { whole.tensors[0].strides = {1, 1}; }, "strides");
  expect([](StateDict& whole) { whole.tensors[0].dtype = DType::kInt32; }, "int32 [8]");
  expect([](StateDict& whole) { whole.tensors[0].shape = {2, 4}; }, "[2, 4]");
  expect([](StateDict& whole) { whole.shardings[0] = {.global_shape = {8}, .mesh = MeshOf(1)}; },
         "sharded");
}

TEST(GatherStateDictTest, MeshesOfUnknownRanksAreRefused) {
  ExpectTensorError(
      [](Communicator& communicator, FourShards& shards) {
        shards.sharding().mesh = MeshOf(5);
        return shards.Gather(communicator);
      },
      {"contains rank 4", "has 4 ranks"});
}

TEST(GatherStateDictTest, ExplicitShardsMustTileTheTensor) {
  const auto gather = [](uint64_t length_of_rank_2) {
    return [=](Communicator& communicator, FourShards& shards) {
      const auto rank = static_cast<uint64_t>(communicator.rank());
      TensorView part = shards.view();
      part.shape = {rank == 2 ? length_of_rank_2 : 2};
      part.data = reinterpret_cast<const std::byte*>(shards.gathered.data());
      shards.sharding() = {.global_shape = {8},
                           .mesh = nullptr,
                           .placements = {},
                           .parts = {{.box = {{2 * rank}, part.shape}, .view = part}}};
      return shards.Gather(communicator);
    };
  };
  ExpectTensorError(gather(1), {"contains element [5]"});
  ExpectTensorError(gather(3), {"rank 2 and rank 3 both contain element [6]"});
}

TEST(GatherStateDictTest, OptionsMustBeGoodAndTheSame) {
  const auto with = [](auto change) {
    return [change](Communicator& communicator, FourShards& shards) {
      CollectiveOptions options;
      change(options, communicator.rank());
      return shards.Gather(communicator, options);
    };
  };
  ExpectOneError(with([](CollectiveOptions& options, int) { options.ranks_only = {4}; }),
                 ErrorCode::kInvalidArgument, {"rank 0: ", "ranks_only names rank 4"});
  ExpectOneError(with([](CollectiveOptions& options, int) { options.buffer_bytes = 15; }),
                 ErrorCode::kInvalidArgument, {"rank 0: ", "15 bytes for 4 ranks"});
  ExpectOneError(with([](CollectiveOptions& options, int rank) {
                   if (rank == 3) options.buffer_bytes = 100;
                 }),
                 ErrorCode::kInvalidArgument, {"ranks 0 and 3", "different arguments"});
  ExpectOneError(with([](CollectiveOptions& options, int rank) {
                   if (rank == 3) options.ranks_only = {3};
                 }),
                 ErrorCode::kInvalidArgument, {"ranks 0 and 3", "different arguments"});
  ExpectOneError(with([](CollectiveOptions& options, int rank) {
                   if (rank == 1) options.buffer_bytes = uint64_t{1} << 60;
                 }),
                 ErrorCode::kResourceExhausted, {"rank 1: ", "host memory"});
}

TEST(GatherStateDictTest, TheCommunicatorStaysUsableAfterABadInput) {
  RunRanks(4, [](Communicator& communicator) {
    FourShards shards(communicator);
    FourShards bad(communicator);
    if (communicator.rank() == 1) bad.view().data = nullptr;
    EXPECT_FALSE(bad.Gather(communicator));
    CAIRN_ASSERT_OK(shards.Gather(communicator));
    EXPECT_THAT(shards.gathered, ElementsAre(0, 0, 1, 1, 2, 2, 3, 3));
  });
}

// The shards are rows, and all memory is contiguous: only the tensors themselves are sent and
// received.
TEST(GatherStateDictTest, RowsNeedNoBuffer) {
  RunRanks(4, [](Communicator& communicator) {
    FourShards shards(communicator);
    CheckedCommunicator tensors(communicator);
    CAIRN_ASSERT_OK(shards.Gather(communicator, {.tensor_communicator = &tensors}));
    const auto is_inside = [](const ByteView& range, const std::vector<float>& memory) {
      const auto bytes = std::as_bytes(std::span(memory));
      return range.data() >= bytes.data() &&
             range.data() + range.size() <= bytes.data() + bytes.size();
    };
    for (const ByteView& range : tensors.last_ranges()) {
      EXPECT_TRUE(is_inside(range, shards.local) || is_inside(range, shards.gathered));
    }
    EXPECT_EQ(tensors.largest_call_bytes(), 8u + 32u);
    EXPECT_EQ(tensors.received_bytes(), 24u);
    EXPECT_EQ(tensors.call_count(), 1u);
  });
}

TEST(GatherStateDictTest, SmallTensorsGoTogether) {
  RunRanks(4, [](Communicator& communicator) {
    FourShards shards(communicator);
    StateDict many;
    StateDict whole;
    std::vector<float> memory(800);
    for (size_t i = 0; i < 100; ++i) {
      many.root().Sharded(std::to_string(i), shards.view(), shards.sharding());
      TensorView view = FourShards::Floats({8}, memory);
      view.data += 32 * i;
      whole.root().Tensor(std::to_string(i), view);
    }
    CheckedCommunicator tensors(communicator);
    CAIRN_ASSERT_OK(
        GatherStateDict(many, StateTarget(whole), communicator, {.tensor_communicator = &tensors}));
    EXPECT_EQ(tensors.call_count(), 1u);
    EXPECT_EQ(memory.back(), 3.f);
  });
}

TEST(GatherStateDictTest, ReplicasAreNotSentToThoseWhoHaveThem) {
  RunRanks(4, [](Communicator& communicator) {
    FourShards shards(communicator);
    shards.sharding().placements = {Placement::Replicate()};
    shards.sharding().global_shape = {2};
    shards.whole.tensors[0].shape = {2};
    CheckedCommunicator tensors(communicator);
    CAIRN_ASSERT_OK(shards.Gather(communicator, {.tensor_communicator = &tensors}));
    EXPECT_EQ(tensors.call_count(), 0u);
    EXPECT_EQ(shards.gathered[1], shards.local[1]);
  });
}

TEST(GatherStateDictTest, SilentRanksEndTheCallAtTheDeadline) {
  RunRanks(
      3,
      [](Communicator& communicator) {
        if (communicator.rank() == 1) return;
        FourShards shards(communicator);
        EXPECT_THAT(shards.Gather(communicator),
                    IsError(ErrorCode::kUnavailable, "did not arrive in time"));
      },
      std::chrono::milliseconds(200));
}

// A full state on rank 0 for the targets of the shards.
StateDict FullState(const std::vector<float>& memory) {
  StateDict full;
  full.root().Map("model").Tensor("w", FourShards::Floats({8}, memory));
  return full;
}

// Broadcasts a full state of rank 0 that `spoil_full` has changed to targets that `spoil` has
// changed on rank 2. All ranks must return the same error, and no target may change.
void ExpectBroadcastFails(const std::function<void(StateDict&)>& spoil_full,
                          const std::function<void(FourShards&)>& spoil,
                          const std::vector<std::string>& says) {
  ExpectTensorError(
      [&](Communicator& communicator, FourShards& shards) {
        const std::vector<float> memory(8, 7.f);
        StateDict full = FullState(memory);
        spoil_full(full);
        if (communicator.rank() == 2) spoil(shards);
        auto result = BroadcastStateDict(full, StateTarget(shards.state), communicator);
        EXPECT_EQ(shards.local[0], static_cast<float>(communicator.rank()));
        return result;
      },
      says);
}

TEST(BroadcastStateDictTest, AllRanksReportWhatDoesNotFit) {
  const auto nothing = [](auto&) {};
  ExpectBroadcastFails([](StateDict& full) { full.tensors[0].dtype = DType::kInt32; }, nothing,
                       {"rank 0: ", "int32 [8]", "float32 [8]"});
  ExpectBroadcastFails([](StateDict& full) { full.tensors[0].shape = {4, 2}; }, nothing,
                       {"rank 0: ", "[4, 2]"});
  ExpectBroadcastFails([](StateDict& full) { full.tensors[0].data = nullptr; }, nothing,
                       {"rank 0: "});
  ExpectBroadcastFails(
      [](StateDict& full) {
        full.shardings[0] = {.global_shape = {8},
                             .mesh = MeshOf(1),
                             .placements = {Placement::Shard(0)},
                             .parts = {}};
      },
      nothing, {"rank 0: ", "gather it first"});
  ExpectBroadcastFails(
      [](StateDict& full) {
        full = StateDict();
        full.root().Map("model").Value("w", int64_t{1});
      },
      nothing, {"rank 0: ", "plain value in one state"});
  ExpectBroadcastFails(nothing, [](FourShards& shards) { shards.view().shape = {3}; },
                       {"rank 2: ", "local tensor has shape [3]"});
  ExpectBroadcastFails(nothing, [](FourShards& shards) { shards.view().strides = {1, 1}; },
                       {"rank 2: ", "the local tensor has 2 strides for 1 dimensions"});
  ExpectBroadcastFails(nothing, [](FourShards& shards) { shards.view().data = nullptr; },
                       {"rank 2: ", "null pointer"});
}

// Rank 3 expects a tensor that rank 0 does not send.
TEST(BroadcastStateDictTest, RanksMustDescribeTheSameFullState) {
  ExpectOneError(
      [](Communicator& communicator, FourShards& shards) {
        const std::vector<float> memory(8, 7.f);
        StateDict full = FullState(memory);
        if (communicator.rank() == 3) full.root().Tensor("other", full.tensors[0]);
        return BroadcastStateDict(full, StateTarget(shards.state), communicator);
      },
      ErrorCode::kInvalidArgument, {"ranks 0 and 3", "different arguments"});
}

// Each of 4 ranks receives a quarter of one megabyte on rank 0, and descriptions of a few hundred
// bytes.
TEST(BroadcastStateDictTest, RanksGetTheBytesOfTheirPartOnly) {
  RunRanks(4, [](Communicator& below) {
    CheckedCommunicator communicator(below);
    constexpr uint64_t kCount = 1 << 18;
    const std::vector<float> memory(kCount, 1.f);
    const std::vector<float> part(kCount / 4);
    StateDict full;
    full.root().Tensor("w", FourShards::Floats({kCount}, memory));
    StateDict target;
    target.root().Sharded("w", FourShards::Floats({kCount / 4}, part),
                          {.global_shape = {kCount},
                           .mesh = MeshOf(4),
                           .placements = {Placement::Shard(0)},
                           .parts = {}});
    CAIRN_ASSERT_OK(BroadcastStateDict(full, StateTarget(target), communicator));
    const uint64_t part_bytes = communicator.rank() == 0 ? 0 : kCount;
    EXPECT_GE(communicator.received_bytes(), part_bytes);
    EXPECT_LE(communicator.received_bytes(), part_bytes + 1000);
  });
}

// Rank 0 sends a tensor that all ranks hold completely once, with Broadcast.
TEST(BroadcastStateDictTest, WholeTensorsAreBroadcast) {
  struct BroadcastOnly : CheckedCommunicator {
    using CheckedCommunicator::CheckedCommunicator;
    Result<void> Exchange(Operation, std::span<const ByteView>,
                          std::span<const ByteTarget>) override {
      return Fail(ErrorCode::kInternal, "an exchange");
    }
  };
  RunRanks(4, [](Communicator& communicator) {
    const std::vector<float> memory(8, 3.f);
    FourShards shards(communicator);
    BroadcastOnly tensors(communicator);
    CAIRN_ASSERT_OK(BroadcastStateDict(FullState(memory), StateTarget(shards.whole), communicator,
                                       {.tensor_communicator = &tensors}));
    EXPECT_EQ(shards.gathered, memory);
    EXPECT_EQ(tensors.call_count(), 1u);
    EXPECT_EQ(tensors.largest_call_bytes(), 32u);
  });
}

TEST(HostMemoryTest, PinnedMemoryNeedsTheCudaLayer) {
  EXPECT_THAT(HostMemory::Allocate(1, {.pinned = true}),
              IsError(ErrorCode::kUnimplemented, "pinned host memory needs a device"));
}

TEST(VoteTest, TheLowestFailureIsEveryonesVerdict) {
  RunRanks(7, [](Communicator& communicator) {
    CAIRN_EXPECT_OK(AgreeOnStatus(communicator, {}));
    Result<void> mine;
    if (communicator.rank() >= 3) {
      mine = Fail(Error{.code = ErrorCode::kDataLoss,
                        .hint = Hint::kRebuild,
                        .message = fmt::format("bad {}", communicator.rank()),
                        .key = "w"});
    }
    const auto verdict = AgreeOnStatus(communicator, mine);
    ASSERT_FALSE(verdict);
    EXPECT_EQ(verdict.error().code, ErrorCode::kDataLoss);
    EXPECT_EQ(verdict.error().hint, Hint::kRebuild);
    EXPECT_EQ(verdict.error().message, "rank 3: bad 3");
    EXPECT_EQ(verdict.error().key, "w");
  });
}

}  // namespace
}  // namespace cairn::core
