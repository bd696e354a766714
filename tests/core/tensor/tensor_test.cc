#include "core/tensor/tensor.h"

#include <set>

#include "tests/support/result_matchers.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;
using ::testing::ElementsAre;

constexpr uint64_t kHuge = uint64_t{1} << 62;

TEST(DTypeTableTest, NamesAndCodesAreDistinctAndFindEachOther) {
  std::set<std::string_view> names;
  std::set<int> codes;
  for (const schema::DTypeInfo& info : schema::kDTypes) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    EXPECT_TRUE(codes.insert(static_cast<int>(info.dtype)).second) << info.name;
    EXPECT_EQ(schema::FindDType(info.name)->dtype, info.dtype);
    EXPECT_EQ(schema::FindDType(info.dtype)->name, info.name);
    EXPECT_EQ(info.storage_bits % 8, 0);
  }
  EXPECT_EQ(schema::ElementBytes(DType::kUnknown), 0u);
  EXPECT_EQ(schema::DTypeName(static_cast<DType>(200)), "unknown");
}

TEST(DTypeTableTest, CodesOnDiskAreFrozen) {
  EXPECT_EQ(static_cast<int>(DType::kBool), 1);
  EXPECT_EQ(static_cast<int>(DType::kFloat32), 12);
  EXPECT_EQ(static_cast<int>(DType::kFloat8E8M0FNU), 21);
  EXPECT_EQ(static_cast<int>(DType::kBits4x2), 41);
  EXPECT_EQ(static_cast<int>(DType::kBComplex32), 42);
}

TEST(TensorTest, CountsElements) {
  EXPECT_EQ(*ElementCount({}), 1u);
  EXPECT_EQ(*ElementCount(Shape{3, 4}), 12u);
  EXPECT_EQ(*ElementCount(Shape{kHuge, kHuge, 0}), 0u);
}

TEST(TensorTest, RejectsOverflow) {
  EXPECT_THAT(ElementCount(Shape{kHuge, 4}), IsError(ErrorCode::kInvalidArgument, "2^63"));
  EXPECT_THAT(TensorBytes(DType::kFloat64, Shape{kHuge}),
              IsError(ErrorCode::kInvalidArgument, "float64"));
  EXPECT_THAT(TensorBytes(DType::kUnknown, Shape{1}),
              IsError(ErrorCode::kInvalidArgument, "unknown"));
}

TEST(TensorTest, RowMajorStrides) {
  EXPECT_THAT(RowMajorStrides(Shape{2, 3, 4}), ElementsAre(12, 4, 1));
  EXPECT_TRUE(RowMajorStrides({}).empty());
}

TEST(TensorTest, ContiguityIgnoresSizeOneAndEmptyTensors) {
  EXPECT_TRUE(IsContiguous(Shape{2, 3}, Shape{3, 1}));
  EXPECT_TRUE(IsContiguous(Shape{2, 1, 3}, Shape{3, 99, 1}));
  EXPECT_TRUE(IsContiguous(Shape{2, 0}, Shape{7, 7}));
  EXPECT_TRUE(IsContiguous(Shape{2, 3}, {}));
  EXPECT_FALSE(IsContiguous(Shape{2, 3}, Shape{1, 2}));
  EXPECT_FALSE(IsContiguous(Shape{2, 3}, Shape{0, 1}));
}

TEST(BoxTest, FitsOnlyInsideTheShape) {
  EXPECT_TRUE(BoxFits({{1, 0}, {2, 3}}, Shape{3, 3}));
  EXPECT_FALSE(BoxFits({{2, 0}, {2, 3}}, Shape{3, 3}));
  EXPECT_FALSE(BoxFits({{0}, {2}}, Shape{3, 3}));
  EXPECT_FALSE(BoxFits({{~uint64_t{0}, 0}, {2, 3}}, Shape{3, 3}));
}

TEST(BoxTest, IntersectionMayBeEmpty) {
  EXPECT_EQ(Intersect({{0, 2}, {4, 4}}, {{2, 0}, {4, 4}}), (Box{{2, 2}, {2, 2}}));
  EXPECT_EQ(Intersect({{0}, {2}}, {{2}, {2}}).sizes, Shape{0});
}

}  // namespace
}  // namespace cairn::core
