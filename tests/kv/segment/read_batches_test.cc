// How ranges are divided among workers.

#include "kv/segment/internal/read_batches.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kv/base/read_range.h"
#include "tests/support/seeded_random.h"

namespace cairn::kv::internal {
namespace {

using cairn::testing::SeededRandom;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kWindowBytes = 1000;

// The targets are never accessed.
ReadRange Targeted(uint64_t segment_id, uint64_t offset_bytes, uint64_t length_bytes) {
  static std::byte memory[16 * kWindowBytes];
  return {.segment_id = segment_id,
          .offset_bytes = offset_bytes,
          .target = std::span(memory).first(length_bytes)};
}

ReadRange Lent(uint64_t segment_id, uint64_t offset_bytes, uint64_t length_bytes) {
  return {.segment_id = segment_id, .offset_bytes = offset_bytes, .lent_bytes = length_bytes};
}

// Where each range of the batch begins and ends in it: "index:begin-end".
std::vector<std::string> Describe(const ReadBatch& batch, std::span<const ReadRange> ranges) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < batch.ranges.size(); ++i) {
    const size_t index = batch.ranges[i];
    const bool is_last = i + 1 == batch.ranges.size();
    parts.push_back(fmt::format("{}:{}-{}", index, i == 0 ? batch.begin_bytes : 0,
                                is_last ? batch.end_bytes : ranges[index].length_bytes()));
  }
  return parts;
}

TEST(ReadBatchesTest, DivideRangesAtTheEndsOfWindows) {
  const std::vector<ReadRange> ranges = {Targeted(1, 900, 1300), Targeted(1, 2200, 800),
                                         Targeted(2, 3000, 10)};
  ReadBatches batches(ranges, kWindowBytes);
  EXPECT_THAT(Describe(batches.Take(), ranges), ElementsAre("0:0-100"));
  EXPECT_THAT(Describe(batches.Take(), ranges), ElementsAre("0:100-1100"));
  EXPECT_THAT(Describe(batches.Take(), ranges), ElementsAre("0:1100-1300", "1:0-800"));
  EXPECT_THAT(Describe(batches.Take(), ranges), ElementsAre("2:0-10"));
  EXPECT_THAT(Describe(batches.Take(), ranges), IsEmpty());
}

TEST(ReadBatchesTest, DoNotDivideRangesWithoutATarget) {
  const std::vector<ReadRange> ranges = {Targeted(1, 0, 10), Lent(1, 950, 100), Lent(1, 1100, 900),
                                         Lent(1, 2000, 10)};
  ReadBatches batches(ranges, kWindowBytes);
  EXPECT_THAT(Describe(batches.Take(), ranges), ElementsAre("0:0-10"));
  EXPECT_THAT(Describe(batches.Take(), ranges), ElementsAre("1:0-100"));
  EXPECT_THAT(Describe(batches.Take(), ranges), ElementsAre("2:0-900"));
  EXPECT_THAT(Describe(batches.Take(), ranges), ElementsAre("3:0-10"));
  EXPECT_THAT(Describe(batches.Take(), ranges), IsEmpty());
}

TEST(ReadBatchesTest, AreEmptyAfterStop) {
  const std::vector<ReadRange> ranges = {Targeted(1, 0, 10), Targeted(1, 5000, 10)};
  ReadBatches batches(ranges, kWindowBytes);
  EXPECT_THAT(Describe(batches.Take(), ranges), ElementsAre("0:0-10"));
  batches.Stop();
  EXPECT_THAT(Describe(batches.Take(), ranges), IsEmpty());
}

TEST(ReadBatchesTest, ContainEveryByteOfEveryRangeOnce) {
  SeededRandom random;
  for (int round = 0; round < 200; ++round) {
    std::vector<ReadRange> ranges;
    for (uint64_t i = random.Between(1, 20); i > 0; --i) {
      const uint64_t segment_id = random.Between(1, 2);
      const uint64_t offset_bytes = random.Between(0, 8 * kWindowBytes);
      const uint64_t length_bytes = random.Chance(0.1) ? 0 : random.Between(1, 4 * kWindowBytes);
      ranges.push_back(random.Chance(0.3) ? Lent(segment_id, offset_bytes, length_bytes)
                                          : Targeted(segment_id, offset_bytes, length_bytes));
    }
    const uint64_t window_bytes = random.Chance(0.2) ? 0 : kWindowBytes;
    SCOPED_TRACE(fmt::format("round {}, windows of {}", round, window_bytes));
    ReadBatches batches(ranges, window_bytes);
    std::map<size_t, uint64_t> done_bytes;
    for (ReadBatch batch = batches.Take(); !batch.ranges.empty(); batch = batches.Take()) {
      for (size_t i = 0; i < batch.ranges.size(); ++i) {
        const size_t index = batch.ranges[i];
        const ReadRange& range = ranges[index];
        const uint64_t begin = i == 0 ? batch.begin_bytes : 0;
        const uint64_t end = i + 1 == batch.ranges.size() ? batch.end_bytes : range.length_bytes();
        ASSERT_LE(begin, end);
        ASSERT_EQ(done_bytes[index], begin);
        done_bytes[index] = end;
        if (range.target.empty()) {
          ASSERT_EQ(end - begin, range.length_bytes());
        } else if (window_bytes > 0) {
          ASSERT_EQ((range.offset_bytes + begin) / window_bytes,
                    (range.offset_bytes + std::max(begin + 1, end) - 1) / window_bytes);
        }
      }
    }
    ASSERT_EQ(done_bytes.size(), ranges.size());
    for (const auto& [index, bytes] : done_bytes) ASSERT_EQ(bytes, ranges[index].length_bytes());
  }
}

}  // namespace
}  // namespace cairn::kv::internal
