#include "core/tensor/mesh.h"

#include <array>

#include "tests/support/result_matchers.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;
using ::testing::ElementsAre;
using Dims = std::vector<DeviceMesh::Dim>;

TEST(DeviceMeshTest, PositionsVaryFastestInTheLastDimension) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, DeviceMesh::Make({{"dp", 2}, {"tp", 3}}));
  EXPECT_EQ(mesh.size(), 6u);
  EXPECT_EQ(mesh.CoordinateOf(4), (std::vector<uint32_t>{1, 1}));
  EXPECT_EQ(mesh.RankAt(std::array{1u, 1u}), 4u);
  EXPECT_EQ(mesh.CoordinateOf(6), std::nullopt);
}

TEST(DeviceMeshTest, RanksAreAtTheGivenPositions) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh,
                             DeviceMesh::Make({{"dp", 2}, {"tp", 2}}, {7, 3, 1, 5}));
  EXPECT_EQ(mesh.RankAt(std::array{0u, 1u}), 3u);
  EXPECT_EQ(mesh.CoordinateOf(1), (std::vector<uint32_t>{1, 0}));
  EXPECT_EQ(mesh.CoordinateOf(0), std::nullopt);
  for (const uint32_t rank : mesh.ranks()) EXPECT_EQ(mesh.RankAt(*mesh.CoordinateOf(rank)), rank);
}

TEST(DeviceMeshTest, GroupsDifferInTheGivenDimensionsOnly) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh,
                             DeviceMesh::Make({{"pp", 2}, {"dp", 2}, {"tp", 2}}));
  EXPECT_THAT(mesh.GroupOf(5, std::array<size_t, 0>{}), ElementsAre(5));
  EXPECT_THAT(mesh.GroupOf(5, std::array<size_t, 1>{1}), ElementsAre(5, 7));
  EXPECT_THAT(mesh.GroupOf(7, std::array<size_t, 2>{2, 0}), ElementsAre(2, 3, 6, 7));
}

TEST(DeviceMeshTest, MeshWithoutDimensionsIsOneRank) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, DeviceMesh::Make({}));
  EXPECT_EQ(mesh.size(), 1u);
  EXPECT_EQ(mesh.CoordinateOf(0), std::vector<uint32_t>());
  EXPECT_THAT(mesh.GroupOf(0, std::array<size_t, 0>{}), ElementsAre(0));
}

TEST(DeviceMeshTest, RejectsInvalidMeshes) {
  EXPECT_THAT(DeviceMesh::Make({{"dp", 0}}), IsError(ErrorCode::kInvalidArgument, "size 0"));
  EXPECT_THAT(DeviceMesh::Make({{"dp", 2}, {"dp", 2}}),
              IsError(ErrorCode::kInvalidArgument, "named 'dp'"));
  EXPECT_THAT(DeviceMesh::Make({{"dp", 2}}, {1, 1}),
              IsError(ErrorCode::kInvalidArgument, "rank 1 is at two positions"));
  EXPECT_THAT(DeviceMesh::Make({{"dp", 2}}, {1}),
              IsError(ErrorCode::kInvalidArgument, "1 ranks for a mesh of 2 positions"));
  EXPECT_THAT(DeviceMesh::Make(Dims{{"a", 1u << 31}, {"b", 1u << 31}, {"c", 1u << 31}}),
              IsError(ErrorCode::kInvalidArgument, "more than"));
  EXPECT_THAT(DeviceMesh::Make(Dims(64, {"", 1})),
              IsError(ErrorCode::kInvalidArgument, "64 dimensions; the most is 63"));
}

}  // namespace
}  // namespace cairn::core
