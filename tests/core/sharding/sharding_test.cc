// Boxes of global tensors that local memory holds.

#include "core/tensor/sharding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "tests/support/result_matchers.h"

namespace cairn::core {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::shared_ptr<const DeviceMesh> MeshOf(std::vector<DeviceMesh::Dim> dims) {
  return std::make_shared<const DeviceMesh>(*DeviceMesh::Make(std::move(dims)));
}

TEST(ShardingTest, StridedShardsAreSeveralBoxesOfOneLocalTensor) {
  // 8 rows, sharded over tp = 2 after a split of 2: rank 0 holds rows 0, 1, 4, 5.
  const Sharding sharding{.global_shape = {8, 3},
                          .mesh = MeshOf({{"dp", 2}}),
                          .placements = {Placement::StridedShard(0, 2)},
                          .parts = {}};
  std::array<uint8_t, 12> memory{};
  const TensorView local{.dtype = DType::kUInt8,
                         .shape = {4, 3},
                         .data = reinterpret_cast<const std::byte*>(memory.data())};
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto pieces, ShardViewsOf(sharding, local, 0));
  ASSERT_THAT(pieces, SizeIs(2));
  EXPECT_EQ(pieces[0].box, (Box{{0, 0}, {2, 3}}));
  EXPECT_EQ(pieces[1].box, (Box{{4, 0}, {2, 3}}));
  EXPECT_EQ(pieces[1].view.data, local.data + 6);
  EXPECT_EQ(pieces[1].view.shape, (Shape{2, 3}));
}

TEST(ShardingTest, EmptyShardsHaveNoBoxes) {
  const Sharding sharding{.global_shape = {1},
                          .mesh = MeshOf({{"dp", 2}}),
                          .placements = {Placement::Shard(0)},
                          .parts = {}};
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const auto pieces,
      ShardViewsOf(sharding, TensorView{.dtype = DType::kFloat32, .shape = {0}}, 1));
  EXPECT_THAT(pieces, IsEmpty());
}

TEST(ShardingTest, LocalShapesThatDoNotFitAreRejected) {
  const Sharding sharding{.global_shape = {4},
                          .mesh = MeshOf({{"dp", 2}}),
                          .placements = {Placement::Shard(0)},
                          .parts = {}};
  const auto pieces = ShardViewsOf(sharding, TensorView{.dtype = DType::kFloat32, .shape = {4}}, 1);
  ASSERT_FALSE(pieces);
  EXPECT_EQ(pieces.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(pieces.error().message, HasSubstr("rank 1's local tensor has shape [4]"));
}

TEST(ShardingTest, ExplicitBoxesMustFitShapeAndMemory) {
  const TensorView leaf{.dtype = DType::kFloat32, .shape = {}};
  const TensorView view{.dtype = DType::kFloat32, .shape = {2}};
  Sharding sharding{.global_shape = {4}, .mesh = nullptr, .placements = {}, .parts = {}};
  sharding.parts = {{.box = {{2}, {2}}, .view = view}};
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto pieces, ShardViewsOf(sharding, leaf, 0));
  EXPECT_THAT(pieces, SizeIs(1));
  sharding.parts = {{.box = {{3}, {2}}, .view = view}};
  EXPECT_FALSE(ShardViewsOf(sharding, leaf, 0));
  sharding.parts = {{.box = {{0}, {1}}, .view = view}};
  EXPECT_FALSE(ShardViewsOf(sharding, leaf, 0));
}

}  // namespace
}  // namespace cairn::core
