// Boxes of global tensors that local memory holds.

#include "core/tensor/sharding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/result_matchers.h"

namespace cairn::core {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

std::shared_ptr<const DeviceMesh> MeshOf(std::vector<DeviceMesh::Dim> dims) {
  return std::make_shared<const DeviceMesh>(*DeviceMesh::Make(std::move(dims)));
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
