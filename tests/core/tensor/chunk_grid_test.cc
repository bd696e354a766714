#include "core/tensor/chunk_grid.h"

#include "core/step/internal/tensor_records.h"
#include "tests/support/result_matchers.h"
#include "tests/support/seeded_random.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;
using cairn::testing::SeededRandom;

TEST(ChunkGridTest, SplitsTheOutermostDimensionWhoseRowsFit) {
  struct Case {
    DType dtype;
    Shape shape;
    uint64_t chunk_bytes;
    std::vector<Box> last_chunks;
    uint64_t chunk_count;
  };
  const Case cases[] = {
      {DType::kInt64, {}, 1000, {{}}, 1},       // a scalar
      {DType::kInt64, {5, 0, 7}, 1000, {}, 0},  // no elements
      // Rows of 4 * 100 bytes; 1000 bytes contain two.
      {DType::kFloat32, {5, 100}, 1000, {{{2, 0}, {2, 100}}, {{4, 0}, {1, 100}}}, 3},
      // Rows are too large.
      {DType::kFloat32, {2, 3, 100}, 300, {{{1, 2, 0}, {1, 1, 75}}, {{1, 2, 75}, {1, 1, 25}}}, 12},
      {DType::kComplex128, {3}, 1, {{{2}, {1}}}, 3},  // an element is wider than a chunk
  };
  for (const auto& [dtype, shape, chunk_bytes, last_chunks, chunk_count] : cases) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const ChunkGrid grid, ChunkGrid::Make(dtype, shape, chunk_bytes));
    ASSERT_EQ(grid.chunk_count(), chunk_count);
    for (size_t i = 0; i < last_chunks.size(); ++i) {
      EXPECT_EQ(grid.chunk(chunk_count - last_chunks.size() + i), last_chunks[i]);
    }
  }
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
