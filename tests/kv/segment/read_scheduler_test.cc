// Reads of objects that are not files: with windows, slices and several workers. kv/read_test.cc
// reads files.

#include "kv/segment/internal/read_scheduler.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kv/base/options.h"
#include "kv/base/read_range.h"
#include "kv/io/block_pool.h"
#include "kv/segment/internal/segment_files.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "kv/storage/storage.h"
#include "tests/kv/storage/round_trip_storage.h"
#include "tests/support/result_matchers.h"
#include "tests/support/seeded_random.h"

namespace cairn::kv::internal {
namespace {

using cairn::testing::SeededRandom;

constexpr uint64_t kObjectBytes = 4 << 20;
constexpr uint64_t kBlockBytes = 64 << 10;
constexpr std::byte kFence{0xEE};

struct ObjectReadCase {
  const char* name;
  bool scatters;
};

class ObjectReadTest : public ::testing::TestWithParam<ObjectReadCase> {
 protected:
  void SetUp() override {
    if (GetParam().scatters) {
      storage_ = std::make_shared<MemoryStorage>("read");
    } else {
      storage_ =
          std::make_shared<kv::testing::RoundTripStorage>(std::make_shared<MemoryStorage>("read"));
    }
    bytes_.resize(kObjectBytes);
    random_.Fill(bytes_);
    CAIRN_ASSERT_OK(storage_->Put("segments/1.seg", bytes_));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto queue, storage_->MakeQueue(1));
    ASSERT_EQ(queue->can_scatter(), GetParam().scatters);
  }

  Result<uint64_t> Read(std::span<const ReadRange> ranges, const RangeCallback& arrived) {
    const SegmentSource source{
        .storage = *storage_,
        .queues = queues_,
        .open = [this](uint64_t id) -> Result<std::shared_ptr<const SegmentFile>> {
          return files_.Open(id, *storage_, "segments/1.seg", false);
        }};
    return ReadRanges(ranges, {.block_bytes = kBlockBytes, .queue_depth = 4}, 3, pool_, source,
                      arrived);
  }

  SeededRandom random_;
  std::shared_ptr<Storage> storage_;
  std::vector<std::byte> bytes_;
  FileQueues queues_{/*uring=*/true};
  SegmentFiles files_;
  BlockPool pool_{kBlockBytes, 8};
};

// Ranges overlap, have gaps of all sizes between them, and end anywhere in their windows.
TEST_P(ObjectReadTest, RandomRangesArriveOnceWithTheirBytes) {
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    std::vector<std::vector<std::byte>> memory;
    std::vector<ReadRange> ranges;
    for (uint64_t i = random_.Between(1, 60); i > 0; --i) {
      const uint64_t length = random_.Chance(0.1) ? 0 : random_.Between(1, 4 * kBlockBytes);
      ReadRange range{.segment_id = 1, .offset_bytes = random_.Between(0, kObjectBytes - length)};
      memory.emplace_back(length + 2, kFence);
      if (random_.Chance(0.3)) {
        range.lent_bytes = length;
      } else {
        range.target = std::span(memory.back()).subspan(1, length);
      }
      ranges.push_back(range);
    }
    std::vector<std::atomic<int>> arrivals(ranges.size());
    CAIRN_ASSERT_OK(Read(ranges, [&](size_t i, std::span<const std::byte> found) -> Result<void> {
      ++arrivals[i];
      const auto expected =
          std::span(bytes_).subspan(ranges[i].offset_bytes, ranges[i].length_bytes());
      EXPECT_TRUE(std::ranges::equal(found, expected)) << i;
      return {};
    }));
    for (size_t i = 0; i < ranges.size(); ++i) {
      EXPECT_EQ(arrivals[i], 1) << i;
      EXPECT_EQ(memory[i].front(), kFence);
      EXPECT_EQ(memory[i].back(), kFence);
    }
  }
}

TEST_P(ObjectReadTest, NeighboursReadEveryByteOnce) {
  std::vector<std::byte> target(kObjectBytes);
  std::vector<ReadRange> ranges;
  for (uint64_t at = 0; at < kObjectBytes;) {
    const uint64_t length = std::min(random_.Between(1, 3 * kBlockBytes), kObjectBytes - at);
    ranges.push_back(
        {.segment_id = 1, .offset_bytes = at, .target = std::span(target).subspan(at, length)});
    at += length;
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const uint64_t read_bytes,
                             Read(ranges, [](size_t, auto) -> Result<void> { return {}; }));
  EXPECT_TRUE(target == bytes_);
  // Blocks begin and end at multiples of 4 KiB.
  const uint64_t excess_bytes = GetParam().scatters ? 0 : ranges.size() * 2 * 4096;
  EXPECT_LE(read_bytes, kObjectBytes + excess_bytes);
}

TEST_P(ObjectReadTest, AnObjectThatEndsEarlyIsDataLoss) {
  std::vector<std::byte> target(2 * kBlockBytes);
  const ReadRange range{.segment_id = 1,
                        .offset_bytes = kObjectBytes - target.size() + 1,
                        .target = std::span(target)};
  EXPECT_THAT(Read({&range, 1}, [](size_t, auto) -> Result<void> { return {}; }),
              cairn::testing::IsError(ErrorCode::kDataLoss, "1.seg"));
}

INSTANTIATE_TEST_SUITE_P(, ObjectReadTest,
                         ::testing::Values(ObjectReadCase{.name = "Slices", .scatters = true},
                                           ObjectReadCase{.name = "Blocks", .scatters = false}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace cairn::kv::internal
