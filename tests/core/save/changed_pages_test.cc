// Which pages of a changed chunk are written.

#include "core/save/internal/changed_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "kv/base/digest.h"
#include "kv/base/payload.h"
#include "tests/support/seeded_random.h"

namespace cairn::core::internal {
namespace {

using kv::Extent;
using kv::kPageBytes;
using PageRange = kv::PageRange;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kTailBytes = 100;

// The extent of a chunk with `page_count` pages, of which the last is short.
Extent Whole(uint64_t page_count) {
  return {.segment_id = 1,
          .offset_bytes = 4096,
          .length_bytes = (page_count - 1) * kPageBytes + kTailBytes,
          .page_digests_offset_bytes = 1 << 20};
}

std::vector<bool> Changed(uint64_t page_count, std::initializer_list<uint64_t> pages) {
  std::vector<bool> changed(page_count);
  for (const uint64_t page : pages) changed[page] = true;
  return changed;
}

// The extents that appending the ranges would return.
std::vector<Extent> Append(const PageRanges& ranges, uint64_t length_bytes, uint64_t segment_id) {
  std::vector<Extent> appended;
  uint64_t at = 4096;
  for (const PageRange& run : ranges.written) {
    const uint64_t bytes =
        std::min(run.end_page * kPageBytes, length_bytes) - run.begin_page * kPageBytes;
    appended.push_back({segment_id, at, bytes, (1 << 20) + 8 * run.begin_page});
    at += 1 << 30;  // never adjacent
  }
  return appended;
}

TEST(PageRangesTest, ChangedPagesAreThoseWhoseDigestsDiffer) {
  EXPECT_THAT(ChangedPages(std::array<uint64_t, 3>{1, 2, 3}, std::array<uint64_t, 3>{1, 5, 3}),
              ElementsAre(false, true, false));
}

TEST(PageRangesTest, OneChangedPageSplitsTheBase) {
  const Extent base = Whole(10);
  const auto ranges = PlanPageRanges(Changed(10, {4}), base);
  ASSERT_TRUE(ranges);
  EXPECT_THAT(ranges->written, ElementsAre(PageRange{4, 5}));
  const Extent written{7, 8192, kPageBytes, 999};
  const kv::Extents joined = ranges->Join({&written, 1});
  EXPECT_THAT(joined.all(),
              ElementsAre(base.First(4 * kPageBytes), written, base.From(5 * kPageBytes)));
  EXPECT_EQ(joined.length_bytes(), base.length_bytes);
}

TEST(PageRangesTest, AdjacentPagesAreOneRangeAndTheShortPageIsTheLast) {
  const Extent base = Whole(10);
  const auto ranges = PlanPageRanges(Changed(10, {0, 1, 8, 9}), base);
  ASSERT_TRUE(ranges);
  EXPECT_THAT(ranges->written, ElementsAre(PageRange{0, 2}, PageRange{8, 10}));
  EXPECT_THAT(
      ranges->extents,
      ElementsAre(std::nullopt, base.From(2 * kPageBytes).First(6 * kPageBytes), std::nullopt));
}

TEST(PageRangesTest, UpToHalfOfThePagesAreWrittenAlone) {
  EXPECT_TRUE(PlanPageRanges(Changed(4, {0, 1}), Whole(4)));
  EXPECT_FALSE(PlanPageRanges(Changed(4, {0, 1, 2}), Whole(4)));
  EXPECT_FALSE(PlanPageRanges(Changed(1, {0}), Whole(1)));
  EXPECT_FALSE(PlanPageRanges(Changed(3, {1, 2}), Whole(3)));
}

TEST(PageRangesTest, AChunkWithTooManyExtentsIsWrittenCompletely) {
  EXPECT_EQ(MaxExtents(64), 32u);
  EXPECT_EQ(MaxExtents(1), 32u);
  EXPECT_EQ(MaxExtents(200), 100u);
  EXPECT_EQ(MaxExtents(1 << 20), 512u);
  const auto every_fourth = [](uint64_t page_count, uint64_t changed_count) {
    std::vector<bool> changed(page_count);
    for (uint64_t i = 0; i < changed_count; ++i) changed[4 * i + 1] = true;
    return PlanPageRanges(changed, Whole(page_count));
  };
  const auto ranges = every_fourth(64, 15);  // and 16 ranges of the base between them
  ASSERT_TRUE(ranges);
  EXPECT_EQ(ranges->extents.size(), 31u);
  EXPECT_FALSE(every_fourth(64, 16));
}

TEST(PageRangesTest, NothingChangedKeepsTheBase) {
  const auto ranges = PlanPageRanges(Changed(5, {}), Whole(5));
  ASSERT_TRUE(ranges);
  EXPECT_THAT(ranges->written, IsEmpty());
  EXPECT_EQ(ranges->Join({}), kv::Extents(Whole(5)));
}

// Property: however often pages change, each page of the chunk is where it was written last.
TEST(PageRangesTest, EveryPageIsWhereItWasWrittenLast) {
  testing::SeededRandom random;
  for (int round = 0; round < 50; ++round) {
    const uint64_t page_count = random.Between(2, 80);
    const uint64_t length_bytes = Whole(page_count).length_bytes;
    kv::Extents extents = Whole(page_count);
    std::vector<uint64_t> segment_of(page_count, 1);
    for (uint64_t save = 2; save < 20; ++save) {
      std::vector<bool> changed(page_count);
      for (uint64_t i = random.Between(0, 3); i > 0; --i) {
        changed[random.Between(0, page_count - 1)] = true;
      }
      const auto ranges = PlanPageRanges(changed, extents);
      if (!ranges) break;
      extents = ranges->Join(Append(*ranges, length_bytes, save));
      ASSERT_EQ(extents.length_bytes(), length_bytes);
      ASSERT_LE(extents.size(), MaxExtents(page_count));
      for (uint64_t page = 0; page < page_count; ++page) {
        if (changed[page]) segment_of[page] = save;
        const Extent at = extents.At(page * kPageBytes);
        ASSERT_EQ(at.segment_id, segment_of[page]) << "page " << page;
        ASSERT_EQ(at.page_digests_offset_bytes, (1 << 20) + 8 * page) << "page " << page;
      }
    }
  }
}

}  // namespace
}  // namespace cairn::core::internal
