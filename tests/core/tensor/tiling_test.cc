#include "core/tensor/tiling.h"

#include "tests/support/result_matchers.h"
#include "tests/support/seeded_random.h"

namespace cairn::core {
namespace {

using cairn::testing::SeededRandom;
using ::testing::ElementsAre;
using Kind = TilingFlaw::Kind;

BoxList ListOf(size_t dimensions, const std::vector<Box>& boxes) {
  BoxList list(dimensions);
  for (const Box& box : boxes) list.Add(box);
  return list;
}

TEST(TilingTest, FindsTheKindOfFlaw) {
  struct Case {
    Shape shape;
    std::vector<Box> boxes;
    std::optional<Kind> kind;  // empty: a tiling
    std::vector<size_t> flawed_boxes = {};
  };
  const uint64_t most = ~uint64_t{0};
  const Case cases[] = {
      {{}, {{}}, {}},
      {{}, {}, Kind::kGap},
      {{}, {{}, {}}, Kind::kOverlap, {0, 1}},
      {{0, 3}, {}, {}},
      {{0, 3}, {{{0, 1}, {0, 1}}}, {}},
      {{4}, {{{0}, {4}}, {{4}, {0}}, {{2}, {0}}}, {}},  // empty boxes are ignored
      {{4}, {{{0}, {4}}, {{4}, {1}}}, Kind::kOutside, {1}},
      {{4}, {{{2}, {most}}}, Kind::kOutside, {0}},
  };
  for (const auto& [shape, boxes, kind, flawed_boxes] : cases) {
    const auto flaw = FindTilingFlaw(shape, ListOf(shape.size(), boxes));
    SCOPED_TRACE(::testing::PrintToString(shape) + " of " + std::to_string(boxes.size()));
    ASSERT_EQ(flaw.has_value(), kind.has_value());
    if (!flaw) continue;
    EXPECT_EQ(flaw->kind, *kind);
    EXPECT_EQ(flaw->boxes, flawed_boxes);
  }
}

// The number of elements is right, because an overlap compensates for a gap.
TEST(TilingTest, OverlapThatCompensatesForAGapIsFound) {
  const auto flaw = FindTilingFlaw(Shape{8}, ListOf(1, {{{0}, {4}}, {{2}, {2}}, {{6}, {2}}}));
  ASSERT_TRUE(flaw.has_value());
  if (flaw->kind == Kind::kOverlap) {
    EXPECT_THAT(flaw->boxes, ElementsAre(0, 1));
    EXPECT_THAT(flaw->element[0], ::testing::AnyOf(2, 3));
  } else {
    EXPECT_THAT(flaw->element[0], ::testing::AnyOf(4, 5));
  }
}

// Splits a box repeatedly, at random positions.
std::vector<Box> RandomTiling(SeededRandom& random, const Shape& shape, size_t cuts) {
  std::vector<Box> boxes = {WholeBox(shape)};
  for (size_t i = 0; i < cuts; ++i) {
    Box& box = boxes[random.Between(0, boxes.size() - 1)];
    const size_t d = random.Between(0, shape.size() - 1);
    if (box.sizes[d] < 2) continue;
    Box rest = box;
    box.sizes[d] = random.Between(1, box.sizes[d] - 1);
    rest.offsets[d] += box.sizes[d];
    rest.sizes[d] -= box.sizes[d];
    boxes.push_back(rest);
  }
  return boxes;
}

uint64_t CountHolders(const std::vector<Box>& boxes, const std::vector<uint64_t>& element) {
  return static_cast<uint64_t>(std::ranges::count_if(boxes, [&](const Box& box) {
    for (size_t d = 0; d < element.size(); ++d) {
      if (element[d] < box.offsets[d] || element[d] >= box.offsets[d] + box.sizes[d]) return false;
    }
    return true;
  }));
}

TEST(TilingTest, RandomTilingsAreTilingsUntilABoxIsChanged) {
  SeededRandom random;
  for (int round = 0; round < 500; ++round) {
    SCOPED_TRACE(round);
    Shape shape(random.Between(1, 4));
    for (uint64_t& size : shape) size = random.Between(1, 30);
    std::vector<Box> boxes = RandomTiling(random, shape, random.Between(0, 60));
    ASSERT_EQ(FindTilingFlaw(shape, ListOf(shape.size(), boxes)), std::nullopt);
    Box& box = boxes[random.Between(0, boxes.size() - 1)];
    const size_t d = random.Between(0, shape.size() - 1);
    const Box before = box;
    if (random.Chance(0.5) && box.offsets[d] + box.sizes[d] < shape[d]) {
      ++(random.Chance(0.5) ? box.offsets[d] : box.sizes[d]);
    } else {
      --box.sizes[d];
    }
    const auto flaw = FindTilingFlaw(shape, ListOf(shape.size(), boxes));
    ASSERT_TRUE(flaw.has_value());
    const uint64_t holders = CountHolders(boxes, flaw->element);
    ASSERT_EQ(flaw->kind == Kind::kGap, holders == 0);
    ASSERT_EQ(flaw->boxes.size(), holders);
    if (flaw->kind == Kind::kOverlap) {
      ASSERT_GE(holders, 2u);
    }
  }
}

TEST(TilingTest, OneWrongBoxAmongManyIsFound) {
  constexpr uint64_t kRows = 300, kColumns = 200;
  std::vector<Box> boxes;
  for (uint64_t row = 0; row < kRows; ++row) {
    for (uint64_t column = 0; column < kColumns; ++column) {
      boxes.push_back({{row * 7, column * 5}, {7, 5}});
    }
  }
  const Shape shape = {kRows * 7, kColumns * 5};
  EXPECT_EQ(FindTilingFlaw(shape, ListOf(2, boxes)), std::nullopt);
  boxes[31'234].offsets[1] -= 5;
  const auto flaw = FindTilingFlaw(shape, ListOf(2, boxes));
  ASSERT_TRUE(flaw.has_value());
  if (flaw->kind == Kind::kOverlap) {
    EXPECT_THAT(flaw->boxes, ElementsAre(31'233, 31'234));
  } else {
    EXPECT_EQ(CountHolders(boxes, flaw->element), 0u);
  }
}

}  // namespace
}  // namespace cairn::core
