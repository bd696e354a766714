#include "core/tensor/internal/strided_region.h"

#include <cstring>

#include "tests/core/tensor/strided_fixture.h"

namespace cairn::core::internal {
namespace {

using cairn::testing::SeededRandom;

std::vector<uint64_t> InBytes(std::vector<uint64_t> strides, uint64_t element_bytes) {
  for (uint64_t& stride : strides) stride *= element_bytes;
  return strides;
}

TEST(StridedRegionTest, OnlyAContiguousRegionHasAContiguousTarget) {
  std::byte memory[64];
  const uint64_t sizes[] = {4, 8}, strides[] = {8, 1};
  const StridedRegion region(sizes, strides, strides, 1, -16, memory);
  EXPECT_EQ(region.ContiguousTarget(16), memory + 16);
  EXPECT_EQ(region.ContiguousTarget(17), nullptr);
  EXPECT_EQ(region.ShiftedBy(-17).ContiguousTarget(8), nullptr);
}

TEST(StridedRegionTest, ColumnTouchesOnlyItsPages) {
  // One column of 4 rows of 1000 bytes, pages of 100.
  std::byte memory[4];
  const uint64_t sizes[] = {4, 1}, source[] = {1000, 1}, target[] = {1, 1};
  const StridedRegion region(sizes, source, target, 1, 250, memory);
  std::vector<uint64_t> pages;
  region.ForEachTouched(4000, 100, [&](uint64_t begin, uint64_t end) {
    EXPECT_EQ(end, begin + 1);
    pages.push_back(begin / 100);
  });
  EXPECT_EQ(pages, (std::vector<uint64_t>{2, 12, 22, 32}));
}

// Invariants, for any strides, including strides with which elements overlap: windows of any size,
// in any order, copy exactly what the naive copy does, and the touched ranges contain every byte
// that is needed.
TEST(StridedRegionTest, WindowsCopyWhatTheNaiveCopyDoes) {
  SeededRandom random;
  for (int round = 0; round < 500; ++round) {
    const StridedTensor source = RandomStrided(random, /*may_repeat=*/true);
    const uint64_t element = schema::ElementBytes(source.dtype);
    const auto expected = NaiveRowMajor(source.view());
    std::vector<std::byte> target(expected.size());
    const StridedRegion region(source.shape, InBytes(source.strides, element),
                               InBytes(RowMajorStrides(source.shape), element), element, 0,
                               target.data());
    const uint64_t length = source.memory.size();
    ASSERT_EQ(region.end_bytes(), static_cast<int64_t>(length));
    std::vector<bool> touched(length);
    region.ForEachTouched(length, random.Between(1, 40), [&](uint64_t begin, uint64_t end) {
      for (uint64_t i = begin; i < end; ++i) touched[i] = true;
    });
    ForEachIndex(source.shape, [&](const std::vector<uint64_t>& index) {
      const uint64_t at = Dot(index, source.strides) * element;
      for (uint64_t i = at; i < at + element; ++i) ASSERT_TRUE(touched[i]);
    });
    std::vector<std::pair<uint64_t, uint64_t>> windows;
    for (uint64_t begin = 0; begin < length;) {
      const uint64_t count = random.Between(1, length - begin);
      windows.emplace_back(begin, count);
      begin += count;
    }
    for (size_t i = windows.size(); i > 0; --i) {
      const auto [begin, count] = windows[i - 1];
      // Relative to a chunk in the middle of the payload.
      region.ShiftedBy(static_cast<int64_t>(begin))
          .CopyFrom(std::span(source.memory).subspan(begin, count), 0);
    }
    ASSERT_EQ(target, expected);
  }
}

}  // namespace
}  // namespace cairn::core::internal
