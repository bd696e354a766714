// Dimensions are joined and counted in wide units only if the result addresses the same bytes.

#include "cuda/internal/strided_shape.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "core/tensor/strided_copy.h"
#include "tests/cuda/device_tensor.h"
#include "tests/support/result_matchers.h"

namespace cairn::cuda::internal {
namespace {

using core::DType;
using core::TensorView;
using testing::RandomBytes;

// Does what the kernel does, unit by unit.
std::vector<std::byte> Gather(const StridedShape& shape, const std::byte* tensor, uint64_t bytes) {
  std::vector<std::byte> packed(bytes);
  const auto unit = static_cast<uint64_t>(shape.unit_bytes);
  for (uint64_t i = 0; i < bytes / unit; ++i) {
    uint64_t rest = i;
    uint64_t offset = 0;
    for (int d = shape.dims - 1; d >= 0; --d) {
      offset += rest % shape.sizes[d] * shape.steps_bytes[d];
      rest /= shape.sizes[d];
    }
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor + offset) % unit, 0u);
    std::copy_n(tensor + offset, unit, packed.data() + i * unit);
  }
  return packed;
}

TEST(StridedShapeTest, AddressesTheSameBytes) {
  alignas(64) static std::byte memory[1 << 16];
  const std::vector<std::byte> random = RandomBytes(sizeof(memory), 3);
  std::copy(random.begin(), random.end(), memory);
  const std::vector<TensorView> views{
      {.dtype = DType::kFloat32, .shape = {8, 16}, .strides = {16, 1}},
      {.dtype = DType::kFloat32, .shape = {8, 12}, .strides = {16, 1}},
      {.dtype = DType::kFloat32, .shape = {16, 8}, .strides = {1, 16}},
      {.dtype = DType::kBFloat16, .shape = {4, 3, 5}, .strides = {100, 20, 3}},
      {.dtype = DType::kUInt8, .shape = {7, 13}, .strides = {13, 1}},
      {.dtype = DType::kComplex128, .shape = {3, 4}, .strides = {1, 3}},
      {.dtype = DType::kFloat64, .shape = {4, 1, 6}, .strides = {6, 999, 1}},
      {.dtype = DType::kFloat32, .shape = {5, 4}, .strides = {0, 1}},
      {.dtype = DType::kInt64, .shape = {}, .strides = {}},
  };
  for (TensorView view : views) {
    for (const uint64_t shift : {0, 16, 1}) {
      view.data = memory + shift;
      const uint64_t bytes = *core::TensorBytes(view.dtype, view.shape);
      auto shape = ShapeForCopy(view, 0);
      CAIRN_ASSERT_OK(shape);
      std::vector<std::byte> expected(bytes);
      core::GatherBytes(view, 0, expected);
      EXPECT_EQ(Gather(*shape, view.data, bytes), expected);
    }
  }
}

TEST(StridedShapeTest, JoinsContiguousDimensionsAndWidensUnits) {
  const auto* const data = reinterpret_cast<const std::byte*>(uintptr_t{4096});
  auto whole = ShapeForCopy(
      {.dtype = DType::kFloat32, .shape = {8, 16}, .strides = {16, 1}, .data = data}, 0);
  CAIRN_ASSERT_OK(whole);
  EXPECT_EQ(whole->dims, 1);
  EXPECT_EQ(whole->unit_bytes, 16);
  EXPECT_EQ(whole->sizes[0], 32u);
  auto rows = ShapeForCopy(
      {.dtype = DType::kFloat32, .shape = {8, 6}, .strides = {16, 1}, .data = data}, 0);
  CAIRN_ASSERT_OK(rows);
  EXPECT_EQ(rows->dims, 2);
  EXPECT_EQ(rows->unit_bytes, 8);
  EXPECT_EQ(rows->sizes[1], 3u);
  // A cut in the middle of a wide unit requires narrower units.
  auto cut = ShapeForCopy(
      {.dtype = DType::kFloat32, .shape = {8, 16}, .strides = {16, 1}, .data = data}, 4);
  CAIRN_ASSERT_OK(cut);
  EXPECT_EQ(cut->unit_bytes, 4);
}

TEST(StridedShapeTest, RefusesMoreDimensionsThanTheKernelSupports) {
  TensorView view{.dtype = DType::kUInt8};
  for (uint64_t d = 0; d < 17; ++d) {
    view.shape.push_back(2);
    view.strides.push_back(uint64_t{3} << d);
  }
  EXPECT_THAT(ShapeForCopy(view, 0), testing::IsError(ErrorCode::kUnimplemented, "17 dimensions"));
}

}  // namespace
}  // namespace cairn::cuda::internal
