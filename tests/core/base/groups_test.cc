// Groups of items for the threads of a pool.

#include "core/base/internal/groups.h"

#include <gmock/gmock.h>

#include <cstdint>
#include <numeric>
#include <vector>

namespace cairn::core {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kMiB = 1 << 20;

std::vector<size_t> GroupSizes(std::vector<uint64_t> lengths) {
  std::vector<size_t> sizes;
  const uint64_t* next = lengths.data();
  for (const auto& group :
       internal::GroupByBytes(std::span(lengths), [](uint64_t length) { return length; })) {
    EXPECT_EQ(group.data(), next);
    next += group.size();
    sizes.push_back(group.size());
  }
  EXPECT_EQ(next, lengths.data() + lengths.size());
  return sizes;
}

TEST(GroupByBytesTest, AGroupEndsWhenItIsLongEnough) {
  EXPECT_THAT(GroupSizes({kMiB, kMiB, kMiB, kMiB, kMiB}), ElementsAre(4, 1));
  EXPECT_THAT(GroupSizes({kMiB, 9 * kMiB, kMiB}), ElementsAre(2, 1));
}

TEST(GroupByBytesTest, LongItemsAreAlone) {
  EXPECT_THAT(GroupSizes({8 * kMiB, 4 * kMiB, kMiB}), ElementsAre(1, 1, 1));
}

TEST(GroupByBytesTest, EmptyItemsAreInTheLastGroup) {
  EXPECT_THAT(GroupSizes({4 * kMiB, 0, 0}), ElementsAre(1, 2));
  EXPECT_THAT(GroupSizes({}), IsEmpty());
}

}  // namespace
}  // namespace cairn::core
