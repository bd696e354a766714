// What each rank plans to write: boxes, shares, aliases, and states that are refused.

#include "core/save/internal/save_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>

#include "tests/core/tensor/test_tensor.h"

namespace cairn::core::internal {
namespace {

using cairn::testing::IsError;
using cairn::testing::IsOk;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::shared_ptr<const DeviceMesh> MeshOf(std::vector<DeviceMesh::Dim> dims) {
  return std::make_shared<const DeviceMesh>(*DeviceMesh::Make(std::move(dims)));
}

SavePlan PlanOf(const StateDict& state, const SaveOptions& options, RankInWorld self = {}) {
  auto plan = PlanSave(state, options, self);
  EXPECT_TRUE(IsOk(plan));
  return plan ? *std::move(plan) : SavePlan();
}

/// A sharding by explicit boxes, whose row-major bytes follow one another from `memory` on.
Sharding BoxesOf(const Shape& shape, const std::vector<Box>& boxes, const std::byte* memory) {
  Sharding sharding{.global_shape = shape, .mesh = nullptr, .placements = {}, .parts = {}};
  for (const Box& box : boxes) {
    sharding.parts.push_back(
        {.box = box, .view = {.dtype = DType::kUInt8, .shape = box.sizes, .data = memory}});
    memory += *ElementCount(box.sizes);
  }
  return sharding;
}

// The ranks may hold different bytes by mistake; the step then contains those of one rank.
TEST(SavePlannerTest, AReplicatedTensorIsWrittenByOneRank) {
  const TestTensor tensor(DType::kFloat32, {64, 100});
  StateDict state;
  state.root().Tensor("w", tensor.view());
  int writers = 0;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const SavePlan plan = PlanOf(state, {.chunk_bytes = 400}, {.rank = rank, .world_size = 4});
    EXPECT_EQ(plan.logical_bytes, 64u * 400);
    if (plan.shards.empty()) {
      EXPECT_EQ(plan.tensors[0].chunk_count, 0u);
      EXPECT_EQ(plan.own_bytes, 0u);
      continue;
    }
    ++writers;
    EXPECT_EQ(plan.shards[0].first_chunk, 0u);
    EXPECT_EQ(plan.shards[0].end_chunk, 64u);
    EXPECT_EQ(plan.tensors[0].chunk_count, 64u);
    EXPECT_EQ(plan.own_bytes, 64u * 400);
  }
  EXPECT_EQ(writers, 1);
}

TEST(SavePlannerTest, RanksWriteAboutEquallyManyBytes) {
  std::vector<TestTensor> tensors;
  for (const uint64_t bytes : {900, 100, 100, 100, 400, 500, 300, 300, 300}) {
    tensors.emplace_back(DType::kUInt8, Shape{bytes});
  }
  StateDict state;
  for (size_t i = 0; i < tensors.size(); ++i) {
    state.root().Tensor(std::to_string(i), tensors[i].view());
  }
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(PlanOf(state, {}, {.rank = rank, .world_size = 3}).own_bytes, 1000u);
  }
}

TEST(SavePlannerTest, SharesDoNotDependOnTheOrderOfTheState) {
  const TestTensor large(DType::kFloat32, {30, 100}), small(DType::kUInt8, {700});
  StateDict state, reversed;
  state.root().Tensor("a", large.view());
  state.root().Tensor("b", small.view());
  reversed.root().Tensor("b", small.view());
  reversed.root().Tensor("a", large.view());
  for (uint32_t rank = 0; rank < 3; ++rank) {
    const RankInWorld self{.rank = rank, .world_size = 3};
    const SavePlan plan = PlanOf(state, {.chunk_bytes = 400}, self);
    const SavePlan same = PlanOf(reversed, {.chunk_bytes = 400}, self);
    ASSERT_EQ(plan.shards.size(), same.shards.size());
    for (size_t i = 0; i < plan.shards.size(); ++i) {
      EXPECT_EQ(plan.tensors[plan.shards[i].tensor].fqn, same.tensors[same.shards[i].tensor].fqn);
      EXPECT_EQ(plan.shards[i].first_chunk, same.shards[i].first_chunk);
      EXPECT_EQ(plan.shards[i].end_chunk, same.shards[i].end_chunk);
    }
  }
}

// Property: whatever the sizes and ranks, each chunk is written by exactly one rank, and no rank
// writes more than its share and one tensor.
TEST(SavePlannerTest, EveryChunkIsWrittenByExactlyOneRank) {
  testing::SeededRandom random;
  for (int round = 0; round < 30; ++round) {
    const auto ranks = static_cast<uint32_t>(random.Between(1, 9));
    const uint64_t chunk_bytes = random.Between(1, 300);
    std::vector<TestTensor> tensors;
    for (uint64_t i = random.Between(1, 6); i > 0; --i) {
      tensors.emplace_back(DType::kUInt8, Shape{random.Between(1, 40), random.Between(1, 40)});
    }
    StateDict state;
    for (size_t i = 0; i < tensors.size(); ++i) {
      state.root().Tensor(std::to_string(i), tensors[i].view());
    }
    std::map<std::pair<std::string, uint64_t>, int> writers;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const SavePlan plan =
          PlanOf(state, {.chunk_bytes = chunk_bytes}, {.rank = rank, .world_size = ranks});
      EXPECT_LE(plan.own_bytes, plan.logical_bytes / ranks + 40 * 40);
      for (const PlannedShard& shard : plan.shards) {
        ASSERT_GT(shard.chunk_count(), 0u);
        for (uint64_t i = shard.first_chunk; i < shard.end_chunk; ++i) {
          ++writers[{plan.tensors[shard.tensor].fqn, i}];
        }
      }
    }
    uint64_t chunks = 0;
    for (const TestTensor& tensor : tensors) {
      chunks += ChunkGrid::Make(DType::kUInt8, tensor.shape, chunk_bytes)->chunk_count();
    }
    EXPECT_EQ(writers.size(), chunks);
    for (const auto& [chunk, count] : writers) EXPECT_EQ(count, 1) << chunk.first;
  }
}

TEST(SavePlannerTest, ADTensorIsTheBoxOfThisRankAndReplicasShareTheTensors) {
  const TestTensor local(DType::kUInt8, {2, 8});
  const Sharding sharding{.global_shape = {4, 8},
                          .mesh = MeshOf({{"shard", 2}, {"replicate", 2}}),
                          .placements = {Placement::Shard(0), Placement::Replicate()},
                          .parts = {}};
  StateDict state;
  state.root().Sharded("a", local.view(), sharding);
  const TestTensor other(DType::kUInt8, {2, 8});
  state.root().Sharded("b", other.view(), sharding);
  std::set<size_t> written;
  for (uint32_t rank = 2; rank < 4; ++rank) {  // both hold rows 2 and 3 of both tensors
    const SavePlan plan = PlanOf(state, {.chunk_bytes = 8}, {.rank = rank, .world_size = 4});
    EXPECT_TRUE(plan.has_shards);
    EXPECT_EQ(plan.tensors[0].shape, (Shape{4, 8}));
    ASSERT_THAT(plan.shards, SizeIs(1));
    EXPECT_EQ(plan.shards[0].grid.box(), (Box{{2, 0}, {2, 8}}));
    EXPECT_EQ(plan.shards[0].chunk_count(), 2u);
    written.insert(plan.shards[0].tensor);
  }
  EXPECT_THAT(written, SizeIs(2));
}

TEST(SavePlannerTest, ARankThatIsNotOnTheMeshPlansTheTensorWithoutShards) {
  const Sharding sharding{.global_shape = {4},
                          .mesh = MeshOf({{"shard", 2}}),
                          .placements = {Placement::Shard(0)},
                          .parts = {}};
  StateDict state;
  state.root().Sharded("w", {.dtype = DType::kUInt8, .shape = {0}}, sharding);
  const SavePlan plan = PlanOf(state, {}, {.rank = 2, .world_size = 3});
  EXPECT_THAT(plan.tensors, SizeIs(1));
  EXPECT_THAT(plan.shards, IsEmpty());
}

TEST(SavePlannerTest, ShardsAreInTheOrderOfTheirTensors) {
  const TestTensor memory(DType::kUInt8, {16});
  StateDict state;
  state.root().Sharded("b", {.dtype = DType::kUInt8, .shape = {}},
                       BoxesOf({4, 4}, {{{0, 0}, {2, 4}}, {{2, 0}, {1, 4}}}, memory.bytes.data()));
  state.root().Tensor("a", memory.view());
  const SavePlan plan = PlanOf(state, {});
  ASSERT_THAT(plan.shards, SizeIs(3));
  EXPECT_EQ(plan.tensors[plan.shards[0].tensor].fqn, "a");
  EXPECT_EQ(plan.shards[1].grid.box(), (Box{{0, 0}, {2, 4}}));
  EXPECT_EQ(plan.shards[2].grid.box(), (Box{{2, 0}, {1, 4}}));
  EXPECT_EQ(plan.tensors[plan.shards[2].tensor].fqn, "b");
}

TEST(SavePlannerTest, AnAliasHasNoShardAndIsNotCountedTwice) {
  const TestTensor tensor(DType::kFloat32, {4, 8});
  StateDict state;
  state.root().Tensor("owner", tensor.view());
  state.root().Tensor("row", {.dtype = DType::kFloat32, .shape = {8}, .data = tensor.bytes.data()});
  const SavePlan plan = PlanOf(state, {});
  ASSERT_THAT(plan.tensors, SizeIs(2));
  EXPECT_EQ(plan.tensors[1].alias_of, "owner");
  ASSERT_THAT(plan.shards, SizeIs(1));
  EXPECT_EQ(plan.shards[0].tensor, 0u);
  EXPECT_EQ(plan.logical_bytes, tensor.bytes.size());
  EXPECT_EQ(plan.tensor_count, 2u);
}

TEST(SavePlannerTest, TiedShardedTensorsAreOneTensorAndAnAlias) {
  const TestTensor local(DType::kUInt8, {2, 8});
  const Sharding sharding{.global_shape = {4, 8},
                          .mesh = MeshOf({{"shard", 2}}),
                          .placements = {Placement::Shard(0)},
                          .parts = {}};
  StateDict state;
  state.root().Sharded("tied", local.view(), sharding);
  state.root().Sharded("head", local.view(), sharding);
  const SavePlan plan = PlanOf(state, {}, {.rank = 1, .world_size = 2});
  ASSERT_THAT(plan.tensors, SizeIs(2));
  EXPECT_EQ(plan.tensors[0].fqn, "head");
  EXPECT_EQ(plan.tensors[1].alias_of, "head");
  EXPECT_EQ(plan.tensors[1].alias_strides, (std::vector<uint64_t>{8, 1}));
  EXPECT_THAT(plan.shards, SizeIs(1));
}

TEST(SavePlannerTest, RefusesChunkSizesThatAreZeroOrTooLarge) {
  const TestTensor tensor(DType::kUInt8, {4});
  StateDict state;
  state.root().Tensor("w", tensor.view());
  EXPECT_THAT(PlanSave(state, {.chunk_bytes = 0}), IsError(ErrorCode::kInvalidArgument, "chunk"));
  EXPECT_THAT(PlanSave(state, {.chunk_bytes = kMaxChunkBytes + 1}),
              IsError(ErrorCode::kInvalidArgument, "the most is 1073741824"));
}

TEST(SavePlannerTest, RefusesAReplicatedMeshWithoutThisRank) {
  EXPECT_THAT(PlanSave(StateDict(), {.replicated_mesh = MeshOf({{"stage", 2}})},
                       {.rank = 2, .world_size = 4}),
              IsError(ErrorCode::kInvalidArgument, "replicated_mesh lacks rank 2"));
}

TEST(SavePlannerTest, NamesTheKeyOfATensorWithoutMemory) {
  StateDict state;
  state.root().Map("model").Tensor("w", {.dtype = DType::kFloat32, .shape = {4}});
  EXPECT_THAT(PlanSave(state, {}), IsError(ErrorCode::kInvalidArgument, "model.w"));
}

TEST(SavePlannerTest, NamesTheKeyOfAShardingThatDoesNotFit) {
  const TestTensor local(DType::kUInt8, {3});
  StateDict state;
  state.root().Sharded("w", local.view(),
                       {.global_shape = {4},
                        .mesh = MeshOf({{"shard", 2}}),
                        .placements = {Placement::Shard(0)},
                        .parts = {}});
  EXPECT_THAT(PlanSave(state, {}, {.rank = 0, .world_size = 2}),
              IsError(ErrorCode::kInvalidArgument, "w"));
}

TEST(SavePlannerTest, RefusesAStateWhoseLeavesAndContentsDiffer) {
  const TestTensor tensor(DType::kUInt8, {4});
  StateDict state;
  state.root().Tensor("w", tensor.view());
  state.slot.push_back(0);
  EXPECT_THAT(PlanSave(state, {}), IsError(ErrorCode::kInvalidArgument, "contents for 2"));
  state.slot = {1};
  EXPECT_THAT(PlanSave(state, {}), IsError(ErrorCode::kInvalidArgument, "contents that it lacks"));
}

}  // namespace
}  // namespace cairn::core::internal
