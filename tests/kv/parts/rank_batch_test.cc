// Records of parts are verified and grouped by tensor, and anything else is refused.

#include "kv/commit/internal/rank_batch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "kv/root/internal/kv_records.h"
#include "kv/segment/internal/segment_stream.h"
#include "tests/support/result_matchers.h"
#include "tests/support/seeded_random.h"

namespace cairn::kv::internal {
namespace {

using cairn::testing::IsError;
using cairn::testing::SeededRandom;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr char kAttempt[] = "0123456789abcdef-77-2";
constexpr uint32_t kEpoch = 5;

std::vector<std::byte> ChunkRecord(std::vector<uint64_t> sizes, std::vector<Extent> extents) {
  return EncodeChunk(
      {.sizes = std::move(sizes), .extents = Extents(extents), .digest = {1, 2}, .since_step = 3});
}

class RankBatchTest : public ::testing::Test {
 protected:
  /// Returns the key and the record of a row of a matrix.
  static std::string RowKey(const std::string& fqn, uint64_t row) {
    return TableKey(Column::kChunks, ChunkKey(fqn, std::array{row, uint64_t{0}}));
  }
  static std::vector<std::byte> Row(uint64_t segment_id) {
    return ChunkRecord({1, 8}, {{.segment_id = segment_id, .length_bytes = 8}});
  }
  Result<void> AddRow(const std::string& fqn, uint64_t row, uint64_t segment_id) {
    return Add(Column::kChunks, RowKey(fqn, row).substr(1), Row(segment_id));
  }
  Result<void> Add(Column column, std::string_view key, std::span<const std::byte> value) {
    return batch_.Add({.column = column, .key = key, .value = value});
  }

  /// Returns the chunks as "rank fqn offsets sizes length".
  std::vector<std::string> Chunks() const {
    std::vector<std::string> chunks;
    CAIRN_EXPECT_OK(batch_.ForEachChunk([&](const RankChunk& chunk) -> Result<void> {
      chunks.push_back(fmt::format("{} {} {} {} {}", chunk.rank, chunk.fqn, chunk.offsets,
                                   chunk.sizes, chunk.length_bytes));
      return {};
    }));
    return chunks;
  }
  /// Sorts the records, and returns them with their keys in tables.
  std::vector<std::pair<std::string, std::vector<std::byte>>> Records() {
    std::vector<std::pair<std::string, std::vector<std::byte>>> records;
    CAIRN_EXPECT_OK(batch_.Finish());
    const RecordRun run = batch_.TakeRun();
    auto reader = RecordRunReader::Open(nullptr, run);
    while (reader.value().Valid()) {
      const auto& [key, value] = reader->record();
      records.emplace_back(key, std::vector(value.begin(), value.end()));
      CAIRN_EXPECT_OK(reader->Next());
    }
    return records;
  }

  RankBatch batch_{kAttempt, kEpoch};
};

TEST_F(RankBatchTest, SortsTheChunksOfEachTensor) {
  for (const uint32_t rank : {3, 4}) {
    batch_.BeginPart(rank);
    CAIRN_ASSERT_OK(AddRow("a", rank, 100 + rank));
    CAIRN_ASSERT_OK(AddRow("b", 9 - rank, 100 + rank));
  }
  EXPECT_THAT(Chunks(), ElementsAre("3 a [3, 0] [1, 8] 8", "3 b [6, 0] [1, 8] 8",
                                    "4 a [4, 0] [1, 8] 8", "4 b [5, 0] [1, 8] 8"));
  EXPECT_THAT(batch_.live_bytes().Sorted(), ElementsAre(Pair(103, 16), Pair(104, 16)));
  EXPECT_THAT(Records(),
              ElementsAre(Pair(RowKey("a", 3), Row(103)), Pair(RowKey("a", 4), Row(104)),
                          Pair(RowKey("b", 5), Row(104)), Pair(RowKey("b", 6), Row(103))));
}

TEST_F(RankBatchTest, ChunksOfOneTensorMayHaveOtherDimensions) {
  CAIRN_ASSERT_OK(AddRow("a", 0, 1));
  CAIRN_ASSERT_OK(Add(Column::kChunks, ChunkKey("a", std::array{uint64_t{1}}),
                      ChunkRecord({8}, {{.segment_id = 1, .length_bytes = 8}})));
  CAIRN_ASSERT_OK(AddRow("a", 2, 1));
  EXPECT_THAT(Chunks(), ElementsAre("0 a [0, 0] [1, 8] 8", "0 a [1] [8] 8", "0 a [2, 0] [1, 8] 8"));
  EXPECT_EQ(Records().size(), 3u);
}

TEST_F(RankBatchTest, ClearRemovesTheRecordsOfTheBatchBefore) {
  CAIRN_ASSERT_OK(AddRow("a", 0, 1));
  CAIRN_ASSERT_OK(AddRow("b", 0, 1));
  CAIRN_ASSERT_OK(Add(Column::kStructures, std::string(16, 'd'), {}));
  CAIRN_ASSERT_OK(Add(Column::kSteps, "", EncodeStep({.step = 7, .chunk_count = 2})));
  EXPECT_EQ(batch_.counts().chunks, 2u);
  EXPECT_EQ(Records().size(), 2u);
  batch_.Clear();
  EXPECT_EQ(batch_.size_bytes(), 0u);
  EXPECT_THAT(batch_.shared(), IsEmpty());
  EXPECT_THAT(batch_.live_bytes().Sorted(), IsEmpty());
  EXPECT_EQ(batch_.counts().chunks, 0u);
  batch_.BeginPart(9);
  CAIRN_ASSERT_OK(AddRow("b", 5, 1));
  EXPECT_THAT(Chunks(), ElementsAre("9 b [5, 0] [1, 8] 8"));
  EXPECT_THAT(Records(), ElementsAre(Pair(RowKey("b", 5), Row(1))));
}

TEST_F(RankBatchTest, UsesAreThoseOfAllExtents) {
  CAIRN_ASSERT_OK(Add(Column::kChunks, ChunkKey("a", std::array{uint64_t{0}}),
                      ChunkRecord({70'000}, {{.segment_id = 1, .length_bytes = 65'536},
                                             {.segment_id = 2, .length_bytes = 4'464}})));
  EXPECT_THAT(batch_.live_bytes().Sorted(), ElementsAre(Pair(1, 65'536), Pair(2, 4'464)));
}

TEST_F(RankBatchTest, UsesIncludeDeltasAndTheLengthDoesNot) {
  const auto add = [&](uint64_t delta_bytes) {
    ChunkExtents extents(Extent{.segment_id = 1, .length_bytes = 800});
    extents.deltas = {{.segment_id = 2, .length_bytes = delta_bytes}};
    return Add(Column::kChunks, ChunkKey("a", std::array{uint64_t{0}}),
               EncodeChunk({.sizes = {800}, .extents = extents, .digest = {1, 2}}));
  };
  CAIRN_ASSERT_OK(add(70));
  EXPECT_THAT(batch_.live_bytes().Sorted(), ElementsAre(Pair(1, 800), Pair(2, 70)));
  EXPECT_THAT(Chunks(), ElementsAre("0 a [0] [800] 800"));
  EXPECT_THAT(add(801), IsError(ErrorCode::kDataLoss, "deltas larger"));
}

TEST_F(RankBatchTest, DamagedChunksAreRefused) {
  const std::string key = ChunkKey("a", std::array{uint64_t{1}});
  const std::vector<std::byte> record = ChunkRecord({8}, {{.segment_id = 1, .length_bytes = 8}});
  CAIRN_EXPECT_OK(Add(Column::kChunks, key, record));
  EXPECT_THAT(Add(Column::kChunks, "", record), IsError(ErrorCode::kDataLoss, "malformed"));
  EXPECT_THAT(Add(Column::kChunks, "a", record), IsError(ErrorCode::kDataLoss, "malformed"));
  EXPECT_THAT(Add(Column::kChunks, key + "x", record), IsError(ErrorCode::kDataLoss, "malformed"));
  EXPECT_THAT(Add(Column::kChunks, FqnKey("a"), record),
              IsError(ErrorCode::kDataLoss, "impossible sizes"));
  for (size_t size = 0; size < record.size(); ++size) {
    EXPECT_FALSE(Add(Column::kChunks, key, std::span(record).first(size))) << size;
  }
  SeededRandom random;
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> damaged = record;
    damaged[random.Between(0, damaged.size() - 1)] ^= std::byte(random.Between(1, 255));
    // Either refused or a valid record of something else; sanitizers find everything that is not.
    (void)RankBatch(kAttempt, kEpoch).Add({Column::kChunks, key, damaged});
  }
}

TEST_F(RankBatchTest, SegmentsOfOtherRanksAttemptsOrEpochsAreRefused) {
  const auto add = [&](uint64_t segment_id, uint32_t epoch) {
    batch_.BeginPart(3);
    return Add(Column::kSegments, NumberKey(segment_id),
               EncodeSegment(NewSegmentInfo({.epoch = epoch, .id = segment_id})));
  };
  CAIRN_EXPECT_OK(add(SegmentIdOf(kAttempt, 3, 0), kEpoch));
  const auto records = Records();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].first, TableKey(Column::kSegments, NumberKey(SegmentIdOf(kAttempt, 3, 0))));
  const auto is_refused = IsError(ErrorCode::kDataLoss, "rank 3 contains a segment of another");
  EXPECT_THAT(add(SegmentIdOf(kAttempt, 3, 1), kEpoch), is_refused);
  EXPECT_THAT(add(SegmentIdOf(kAttempt, 2, 0), kEpoch), is_refused);
  EXPECT_THAT(add(SegmentIdOf("0123456789abcdef-77-3", 3, 0), kEpoch), is_refused);
  EXPECT_THAT(add(SegmentIdOf(kAttempt, 3, 0), kEpoch + 1), is_refused);
}

TEST_F(RankBatchTest, OtherRecordsAreRefused) {
  for (const Column column : {Column::kTensors, Column::kValues, Column::kUsage, Column::kTables}) {
    EXPECT_THAT(Add(column, "a", std::vector<std::byte>(8)),
                IsError(ErrorCode::kDataLoss, ColumnName(column)));
  }
  EXPECT_THAT(Add(Column::kStructures, "short", {}), IsError(ErrorCode::kDataLoss, "digest"));
  EXPECT_THAT(Add(Column::kSteps, "", {}), IsError(ErrorCode::kDataLoss, ""));
  EXPECT_THAT(Add(Column::kSegments, "", {}), IsError(ErrorCode::kDataLoss, ""));
}

}  // namespace
}  // namespace cairn::kv::internal
