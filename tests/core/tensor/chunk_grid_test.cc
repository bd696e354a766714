#include "core/tensor/chunk_grid.h"

#include "core/step/internal/tensor_records.h"
#include "tests/support/result_matchers.h"
#include "tests/support/seeded_random.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;
using cairn::testing::SeededRandom;

TEST(ChunkGridTest, ScalarIsOneChunk) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const ChunkGrid grid, ChunkGrid::Make(DType::kInt64, {}));
  ASSERT_EQ(grid.chunk_count(), 1u);
  EXPECT_EQ(grid.chunk(0), Box{});
  EXPECT_EQ(grid.length_bytes(0), 8u);
}

TEST(ChunkGridTest, TensorWithoutElementsHasNoChunk) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const ChunkGrid grid, ChunkGrid::Make(DType::kInt64, {5, 0, 7}));
  EXPECT_EQ(grid.chunk_count(), 0u);
}

TEST(ChunkGridTest, SplitsTheOutermostDimensionWhoseRowsFit) {
  // Rows of 4 * 100 bytes; 1000 bytes contain two.
  CAIRN_ASSERT_OK_AND_ASSIGN(const ChunkGrid grid,
                             ChunkGrid::Make(DType::kFloat32, {5, 100}, 1000));
  ASSERT_EQ(grid.chunk_count(), 3u);
  EXPECT_EQ(grid.chunk(1), (Box{{2, 0}, {2, 100}}));
  EXPECT_EQ(grid.chunk(2), (Box{{4, 0}, {1, 100}}));
}

TEST(ChunkGridTest, SplitsAnInnerDimensionIfRowsAreTooLarge) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const ChunkGrid grid,
                             ChunkGrid::Make(DType::kFloat32, {2, 3, 100}, 300));
  ASSERT_EQ(grid.chunk_count(), 12u);
  EXPECT_EQ(grid.chunk(0), (Box{{0, 0, 0}, {1, 1, 75}}));
  EXPECT_EQ(grid.chunk(11), (Box{{1, 2, 75}, {1, 1, 25}}));
}

TEST(ChunkGridTest, AnElementWiderThanAChunkIsAChunk) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const ChunkGrid grid, ChunkGrid::Make(DType::kComplex128, {3}, 1));
  EXPECT_EQ(grid.chunk_count(), 3u);
}

TEST(ChunkGridTest, RejectsInvalidArguments) {
  EXPECT_THAT(ChunkGrid::Make(DType::kInt8, {1}, 0),
              IsError(ErrorCode::kInvalidArgument, "chunk_bytes"));
  EXPECT_THAT(ChunkGrid::Make(DType::kUnknown, {1}), IsError(ErrorCode::kInvalidArgument, "dtype"));
  EXPECT_THAT(ChunkGrid::Make(DType::kInt8, {uint64_t{1} << 40, uint64_t{1} << 40}),
              IsError(ErrorCode::kInvalidArgument, "2^63"));
}

// Invariants: chunks in order are consecutive ranges of the row-major payload and cover it; only a
// single element may exceed the chunk size.
TEST(ChunkGridTest, ChunksTileAnyTensor) {
  SeededRandom random;
  for (int round = 0; round < 500; ++round) {
    Shape shape(random.Between(0, 4));
    for (uint64_t& size : shape) size = random.Between(1, 9);
    const DType dtype = schema::kDTypes[random.Between(0, schema::kDTypes.size() - 1)].dtype;
    const uint64_t chunk_bytes = random.Between(1, 600);
    CAIRN_ASSERT_OK_AND_ASSIGN(const ChunkGrid grid, ChunkGrid::Make(dtype, shape, chunk_bytes));
    uint64_t position = 0;
    for (uint64_t i = 0; i < grid.chunk_count(); ++i) {
      const Box box = grid.chunk(i);
      ASSERT_TRUE(BoxFits(box, shape));
      ASSERT_EQ(grid.offset_bytes(i), position);
      ASSERT_EQ(internal::ContiguousOffsetBytes(dtype, shape, box), position);
      ASSERT_EQ(grid.length_bytes(i), *TensorBytes(dtype, box.sizes));
      ASSERT_LE(grid.length_bytes(i), std::max(chunk_bytes, schema::ElementBytes(dtype)));
      position += grid.length_bytes(i);
    }
    ASSERT_EQ(position, *TensorBytes(dtype, shape));
  }
}

}  // namespace
}  // namespace cairn::core
