#include <map>
#include <memory>
#include <set>

#include "core/tensor/sharding.h"
#include "tests/support/result_matchers.h"
#include "tests/support/seeded_random.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;
using cairn::testing::SeededRandom;
using ::testing::ElementsAreArray;
using Offsets = std::vector<uint64_t>;

Result<DeviceMesh> MeshOf(const std::vector<uint32_t>& sizes) {
  std::vector<DeviceMesh::Dim> dims;
  for (const uint32_t size : sizes) dims.push_back({.name = "", .size = size});
  return DeviceMesh::Make(std::move(dims));
}

// The part of each rank is one box, or nothing.
void ExpectBoxes(const Shape& shape, const std::vector<uint32_t>& mesh_sizes,
                 const std::vector<Placement>& placements, const std::vector<Box>& expected) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, MeshOf(mesh_sizes));
  for (uint32_t rank = 0; rank < expected.size(); ++rank) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const LocalShard shard, ShardOf(shape, mesh, placements, rank));
    std::vector<Box> boxes;
    for (ShardBox& part : shard.Boxes()) boxes.push_back(std::move(part.box));
    if (!HasNoElements(expected[rank].sizes)) {
      EXPECT_EQ(boxes, std::vector{expected[rank]}) << rank;
    }
    EXPECT_EQ(shard.sizes(), expected[rank].sizes) << rank;
  }
}

TEST(PlacementTest, LastShardsAreShortOrEmpty) {
  ExpectBoxes({5, 3}, {4}, {Placement::Shard(0)},
              {{{0, 0}, {2, 3}}, {{2, 0}, {2, 3}}, {{4, 0}, {1, 3}}, {{5, 0}, {0, 3}}});
}

TEST(PlacementTest, SeveralMeshDimensionsDivideTheSameTensorDimension) {
  ExpectBoxes({2, 5}, {2, 2}, {Placement::Shard(1), Placement::Shard(1)},
              {{{0, 0}, {2, 2}}, {{0, 2}, {2, 1}}, {{0, 3}, {2, 1}}, {{0, 4}, {2, 1}}});
}

// The example of torch's _StridedShard: FSDP over TP.
TEST(PlacementTest, StridedShardDividesAsIfARightDimensionCameFirst) {
  ExpectBoxes({8, 8}, {2, 2}, {Placement::StridedShard(0, 2), Placement::Shard(0)},
              {{{0, 0}, {2, 8}}, {{4, 0}, {2, 8}}, {{2, 0}, {2, 8}}, {{6, 0}, {2, 8}}});
}

TEST(PlacementTest, HugeSizesDoNotOverflow) {
  const uint64_t third = ~uint64_t{0} / 3;
  ExpectBoxes({3 * third}, {3}, {Placement::Shard(0)},
              {{{0}, {third}}, {{third}, {third}}, {{2 * third}, {third}}});
}

TEST(PlacementTest, StridedShardAloneLeavesGaps) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, MeshOf({2}));
  const Placement placements[] = {Placement::StridedShard(1, 2)};
  CAIRN_ASSERT_OK_AND_ASSIGN(const LocalShard shard, ShardOf(Shape{3, 8}, mesh, placements, 1));
  EXPECT_EQ(shard.sizes(), (Shape{3, 4}));
  const auto pieces = shard.Boxes();
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].box, (Box{{0, 2}, {3, 2}}));
  EXPECT_EQ(pieces[0].local_offsets, (Offsets{0, 0}));
  EXPECT_EQ(pieces[1].box, (Box{{0, 6}, {3, 2}}));
  EXPECT_EQ(pieces[1].local_offsets, (Offsets{0, 2}));
}

TEST(PlacementTest, ScalarsAreNotDivided) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, MeshOf({3}));
  const Placement placements[] = {Placement::Replicate()};
  CAIRN_ASSERT_OK_AND_ASSIGN(const LocalShard shard, ShardOf({}, mesh, placements, 2));
  ASSERT_EQ(shard.Boxes().size(), 1u);
  EXPECT_EQ(shard.Boxes()[0].box, Box());
}

TEST(PlacementTest, RejectsPlacementsThatDoNotFit) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, MeshOf({2}));
  const Shape shape = {4};
  const Placement shard[] = {Placement::Shard(0)};
  const Placement beyond[] = {Placement::Shard(1)};
  const Placement no_factor[] = {Placement::StridedShard(0, 0)};
  EXPECT_THAT(ShardOf(shape, mesh, {}, 0),
              IsError(ErrorCode::kInvalidArgument, "0 placements for a mesh of 1"));
  EXPECT_THAT(ShardOf(shape, mesh, beyond, 0),
              IsError(ErrorCode::kInvalidArgument, "divides dimension 1"));
  EXPECT_THAT(ShardOf(shape, mesh, no_factor, 0),
              IsError(ErrorCode::kInvalidArgument, "split factor 0"));
  EXPECT_THAT(ShardOf(shape, mesh, shard, 2), IsError(ErrorCode::kInvalidArgument, "rank 2"));
}

// Each element is held by the ranks of one replica group, all at the same local index.
// tests/python/test_placement.py compares the shards with those of torch.
TEST(PlacementTest, RandomPlacementsCoverEveryElement) {
  SeededRandom random;
  for (int round = 0; round < 400; ++round) {
    SCOPED_TRACE(round);
    Shape shape(random.Between(0, 3));
    for (uint64_t& size : shape) size = random.Between(0, 7);
    std::vector<uint32_t> sizes(random.Between(0, 3));
    for (uint32_t& size : sizes) size = static_cast<uint32_t>(random.Between(1, 4));
    std::vector<Placement> placements(sizes.size());
    for (Placement& placement : placements) {
      if (shape.empty() || random.Chance(0.3)) continue;
      const auto dim = static_cast<uint32_t>(random.Between(0, shape.size() - 1));
      placement = random.Chance(0.5)
                      ? Placement::Shard(dim)
                      : Placement::StridedShard(dim, static_cast<uint32_t>(random.Between(1, 4)));
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, MeshOf(sizes));
    // By element: the ranks that hold it, with the local index.
    std::map<Offsets, std::map<uint32_t, Offsets>> held;
    for (const uint32_t rank : mesh.ranks()) {
      CAIRN_ASSERT_OK_AND_ASSIGN(const LocalShard shard, ShardOf(shape, mesh, placements, rank));
      std::set<Offsets> local_seen;
      for (const ShardBox& shard_box : shard.Boxes()) {
        ASSERT_TRUE(BoxFits(shard_box.box, shape));
        CAIRN_ASSERT_OK_AND_ASSIGN(const uint64_t count, ElementCount(shard_box.box.sizes));
        for (uint64_t i = 0; i < count; ++i) {
          Offsets global = shard_box.box.offsets;
          Offsets local = shard_box.local_offsets;
          uint64_t rest = i;
          for (size_t d = shape.size(); d-- > 0;) {
            global[d] += rest % shard_box.box.sizes[d];
            local[d] += rest % shard_box.box.sizes[d];
            rest /= shard_box.box.sizes[d];
          }
          ASSERT_TRUE(local_seen.insert(local).second);
          ASSERT_TRUE(held[global].emplace(rank, local).second);
        }
      }
      CAIRN_ASSERT_OK_AND_ASSIGN(const uint64_t local_count, ElementCount(shard.sizes()));
      ASSERT_EQ(local_seen.size(), local_count);
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(const uint64_t count, ElementCount(shape));
    ASSERT_EQ(held.size(), count);
    std::vector<size_t> replicated;
    for (size_t m = 0; m < placements.size(); ++m) {
      if (placements[m].kind == Placement::Kind::kReplicate) replicated.push_back(m);
    }
    for (const auto& [global, by_rank] : held) {
      std::vector<uint32_t> ranks;
      for (const auto& [rank, local] : by_rank) {
        ranks.push_back(rank);
        ASSERT_EQ(local, by_rank.begin()->second);
      }
      ASSERT_THAT(mesh.GroupOf(ranks.front(), replicated), ElementsAreArray(ranks));
    }
  }
}

TEST(ShardingTest, LocalShapesThatDoNotFitAreRejected) {
  const Sharding sharding{.global_shape = {4},
                          .mesh = std::make_shared<const DeviceMesh>(*MeshOf({2})),
                          .placements = {Placement::Shard(0)},
                          .parts = {}};
  EXPECT_THAT(ShardViewsOf(sharding, TensorView{.dtype = DType::kFloat32, .shape = {4}}, 1),
              IsError(ErrorCode::kInvalidArgument, "rank 1's local tensor has shape [4]"));
}

TEST(ShardingTest, ExplicitBoxesMustFitShapeAndMemory) {
  const TensorView leaf{.dtype = DType::kFloat32, .shape = {}};
  const TensorView view{.dtype = DType::kFloat32, .shape = {2}};
  Sharding sharding{.global_shape = {4}, .mesh = nullptr, .placements = {}, .parts = {}};
  sharding.parts = {{.box = {{2}, {2}}, .view = view}};
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto pieces, ShardViewsOf(sharding, leaf, 0));
  EXPECT_EQ(pieces.size(), 1u);
  sharding.parts = {{.box = {{3}, {2}}, .view = view}};
  EXPECT_FALSE(ShardViewsOf(sharding, leaf, 0));
  sharding.parts = {{.box = {{0}, {1}}, .view = view}};
  EXPECT_FALSE(ShardViewsOf(sharding, leaf, 0));
}

}  // namespace
}  // namespace cairn::core
