// Maps against a list of pairs: what a clip keeps, and the bounds.

#include "core/tensor/index_map.h"

#include <gmock/gmock.h>

#include <map>
#include <set>

#include "tests/support/seeded_random.h"

namespace cairn::core {
namespace {

using Index = std::vector<uint64_t>;

/// All pairs of a source and a target element.
std::map<Index, Index> PairsOf(const IndexMap& map) {
  std::map<Index, Index> pairs;
  for (uint64_t i = 0; i < MappedCount(map); ++i) {
    Index source = map.source_offsets, target = map.target_offsets;
    uint64_t rest = i;
    for (const IndexAxis& axis : map.axes) {
      source[axis.source_dim] += rest % axis.size * axis.source_step;
      target[axis.target_dim] += rest % axis.size * axis.target_step;
      rest /= axis.size;
    }
    EXPECT_TRUE(pairs.emplace(source, target).second) << "two targets of one element";
  }
  return pairs;
}

bool Contains(const Box& box, const Index& index) {
  for (size_t d = 0; d < index.size(); ++d) {
    if (index[d] < box.offsets[d] || index[d] >= box.offsets[d] + box.sizes[d]) return false;
  }
  return true;
}

/// A permuted tensor of 3 dimensions, the first of which is divided and rearranged.
IndexMap RandomMap(testing::SeededRandom& random) {
  const uint64_t a = random.Between(1, 5), b = random.Between(1, 5), c = random.Between(1, 4),
                 d = random.Between(1, 4);
  IndexMap map{.source_offsets = {random.Between(0, 3), random.Between(0, 3), 0},
               .target_offsets = {random.Between(0, 3), 0, random.Between(0, 3)},
               .axes = {{a, 0, b, 2, 1}, {b, 0, 1, 2, a}, {c, 1, 2, 0, 1}, {d, 2, 1, 1, 3}}};
  std::erase_if(map.axes, [](const IndexAxis& axis) { return axis.size == 1; });
  return map;
}

TEST(IndexMapTest, MapsATensorToItself) {
  const uint64_t shape[] = {2, 1, 3};
  const IndexMap map = IdentityMap(shape);
  EXPECT_EQ(MappedCount(map), 6);
  EXPECT_EQ(SourceBounds(map), WholeBox(shape));
  for (const auto& [source, target] : PairsOf(map)) EXPECT_EQ(source, target);
}

TEST(IndexMapTest, AClipKeepsExactlyThePairsInItsBox) {
  testing::SeededRandom random;
  for (int round = 0; round < 2000; ++round) {
    const IndexMap map = RandomMap(random);
    const auto pairs = PairsOf(map);
    Box box;
    for (int d = 0; d < 3; ++d) {
      box.offsets.push_back(random.Between(0, 12));
      box.sizes.push_back(random.Between(0, 12));
    }
    for (const bool by_source : {true, false}) {
      std::map<Index, Index> kept;
      for (const IndexMap& part : by_source ? ClipSource(map, box) : ClipTarget(map, box)) {
        EXPECT_GT(MappedCount(part), 0);
        for (const auto& pair : PairsOf(part)) {
          EXPECT_TRUE(kept.insert(pair).second) << "in two parts";
          EXPECT_TRUE(Contains(SourceBounds(part), pair.first));
          EXPECT_TRUE(Contains(TargetBounds(part), pair.second));
        }
      }
      std::map<Index, Index> expected;
      for (const auto& pair : pairs) {
        if (Contains(box, by_source ? pair.first : pair.second)) expected.insert(pair);
      }
      EXPECT_EQ(kept, expected);
    }
  }
}

}  // namespace
}  // namespace cairn::core
