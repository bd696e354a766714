// Compares queries of the index with a comparison of every pair of boxes.

#include "core/tensor/box_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/seeded_random.h"

namespace cairn::core {
namespace {

using cairn::testing::SeededRandom;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<size_t> Overlapping(const BoxIndex& index, const Box& box) {
  std::vector<size_t> found;
  index.ForEachOverlap(box.offsets, box.sizes, [&](size_t i) { found.push_back(i); });
  std::ranges::sort(found);
  return found;
}

TEST(BoxIndexTest, FindsTheSameBoxesAsComparingEveryPair) {
  SeededRandom random;
  for (int round = 0; round < 300; ++round) {
    const size_t dims = random.Between(1, 4);
    const auto random_box = [&] {
      Box box;
      for (size_t d = 0; d < dims; ++d) {
        box.offsets.push_back(random.Between(0, 30));
        box.sizes.push_back(random.Between(0, 9));
      }
      return box;
    };
    std::vector<Box> boxes(random.Between(0, 200));
    BoxList list(dims);
    for (Box& box : boxes) {
      box = random_box();
      list.Add(box);
    }
    const BoxIndex index(std::move(list));
    for (int query = 0; query < 20; ++query) {
      const Box wanted = random_box();
      std::vector<size_t> expected;
      for (size_t i = 0; i < boxes.size(); ++i) {
        const Shape common = Intersect(boxes[i], wanted).sizes;
        if (std::ranges::find(common, uint64_t{0}) == common.end()) expected.push_back(i);
      }
      ASSERT_EQ(Overlapping(index, wanted), expected);
    }
  }
}

TEST(BoxIndexTest, AcceptsScalarsAndEmptyLists) {
  BoxList scalars(0);
  EXPECT_THAT(Overlapping(BoxIndex(scalars), Box{}), IsEmpty());
  scalars.Add(Box{});
  EXPECT_THAT(Overlapping(BoxIndex(scalars), Box{}), ElementsAre(0));
}

TEST(BoxIndexTest, AQueryVisitsFewBoxes) {
  // A grid of 100 by 100 boxes: each query finds exactly one.
  BoxList list(2);
  for (uint64_t row = 0; row < 100; ++row) {
    for (uint64_t column = 0; column < 100; ++column) list.Add({{row, column}, {1, 1}});
  }
  const BoxIndex index(std::move(list));
  EXPECT_THAT(Overlapping(index, {{42, 17}, {1, 1}}), ElementsAre(4217));
}

}  // namespace
}  // namespace cairn::core
