// Parts are read as they were written, and every damage to them is refused. The tests of roots
// (root_record_test.cc) cover the frames.

#include "kv/commit/internal/part_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kv/base/key.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "tests/kv/sample_step.h"
#include "tests/support/result_matchers.h"

namespace cairn::kv::internal {
namespace {

using cairn::testing::IsError;
using testing::RandomBytes;

constexpr char kName[] = "pending/0123456789abcdef0000000000000000-77-2/3.part";

using Records = std::vector<std::pair<std::string, std::vector<std::byte>>>;

class PartFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    header_.store_uuid.fill(std::byte{9});
    records_ = {{TableKey(Column::kTensors, FqnKey("w")), RandomBytes(1, 40)},
                {TableKey(Column::kChunks, ChunkKey("w", std::array<uint64_t, 2>{0, 4})),
                 RandomBytes(2, 100)},
                {TableKey(Column::kStructures, "digest"), {}},
                {TableKey(Column::kSteps, ""), RandomBytes(3, 1000)}};
  }

  Result<void> Write() {
    PartWriter writer(storage_, kName, header_);
    for (const auto& [key, value] : records_) {
      CAIRN_TRY(writer.Add({.key = key, .value = value}));
    }
    return writer.Finish();
  }
  Result<Records> Read() {
    CAIRN_TRY_ASSIGN(const auto part, FetchPart(*storage_, kName));
    return ReadAs(header_, part);
  }
  static Result<Records> ReadAs(const PartHeader& expected, std::span<const std::byte> part) {
    Records records;
    uint64_t called_bytes = 0;
    CAIRN_TRY(ReadPart(kName, part, expected, [&](const TableRecord& record) -> Result<void> {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(record.value.data()) % 8, 0u);
      called_bytes += record.key.size() + record.value.size();
      records.emplace_back(record.key,
                           std::vector<std::byte>(record.value.begin(), record.value.end()));
      return {};
    }));
    EXPECT_LE(called_bytes, ClaimedBytes(part));
    return records;
  }
  std::vector<std::byte> Object() { return FetchPart(*storage_, kName).value(); }
  /// Returns a part with one frame, whose checksum is right.
  static std::vector<std::byte> Framed(std::span<const uint64_t> words) {
    return FrameRecord(kPartFrame, std::as_bytes(words)).value();
  }
  /// Returns the words of the only frame.
  std::vector<uint64_t> Words() {
    const std::vector<std::byte> bytes = UnframeRecord(kPartFrame, Object()).value();
    std::vector<uint64_t> words(bytes.size() / sizeof(uint64_t));
    std::memcpy(words.data(), bytes.data(), bytes.size());
    return words;
  }

  std::shared_ptr<MemoryStorage> storage_ = std::make_shared<MemoryStorage>("test");
  PartHeader header_{
      .step = 77, .rank = 3, .world_size = 8, .attempt = "0123456789abcdef0000000000000000-77-2"};
  Records records_;
};

TEST_F(PartFileTest, RecordsOfAnyNumberAndLengthAreReadAsTheyWereWritten) {
  Records many;
  for (uint64_t i = 0; i < 300; ++i) {
    many.emplace_back(TableKey(Column::kChunks, ChunkKey("w", std::array{i})),
                      RandomBytes(i, 10'000 + i));
  }
  many.emplace_back(TableKey(Column::kSteps, ""), RandomBytes(9, 3 << 20));
  EXPECT_THAT(Read(), IsError(ErrorCode::kNotFound, ""));
  for (const Records& records : {records_, Records(), many}) {
    records_ = records;
    CAIRN_ASSERT_OK(storage_->Remove(kName));
    CAIRN_ASSERT_OK(Write());
    CAIRN_ASSERT_OK_AND_ASSIGN(const Records found, Read());
    EXPECT_TRUE(found == records);
  }
}

TEST_F(PartFileTest, ASecondPutSucceedsOnlyWithTheSameBytes) {
  CAIRN_ASSERT_OK(Write());
  const std::vector<std::byte> object = Object();
  CAIRN_ASSERT_OK(Write()) << "the response to the first one may have been lost";
  records_[1].second = RandomBytes(4, 100);  // incompressible, so the objects have the same length
  EXPECT_THAT(Write(), IsError(ErrorCode::kConflict, ""));
  EXPECT_EQ(Object(), object);
}

TEST_F(PartFileTest, EveryFlippedByteAndEveryTruncationIsRefused) {
  CAIRN_ASSERT_OK(Write());
  std::vector<std::byte> bytes = Object();
  const auto is_damaged = IsError(ErrorCode::kDataLoss, kName);
  for (size_t at = 0; at < bytes.size(); ++at) {
    ASSERT_THAT(ReadAs(header_, std::span(bytes).first(at)), is_damaged) << at << " bytes";
    bytes[at] ^= std::byte{0x10};
    ASSERT_THAT(ReadAs(header_, bytes), is_damaged) << "byte " << at;
    bytes[at] ^= std::byte{0x10};
  }
  bytes.push_back(std::byte{0});
  EXPECT_THAT(ReadAs(header_, bytes), IsError(ErrorCode::kDataLoss, "after the end"));
}

TEST_F(PartFileTest, MissingRepeatedOrSwappedFramesAreRefused) {
  records_.assign(3, {TableKey(Column::kChunks, "a"), RandomBytes(1, 1 << 20)});
  CAIRN_ASSERT_OK(Write());
  const std::vector<std::byte> object = Object();
  std::vector<std::span<const std::byte>> frames;
  for (auto rest = std::span(object); !rest.empty(); rest = rest.subspan(frames.back().size())) {
    frames.push_back(rest.first(LengthsOfFrame(rest).frame_bytes));
  }
  ASSERT_EQ(frames.size(), 3u);
  for (const std::vector<size_t>& order :
       std::vector<std::vector<size_t>>{{0, 2}, {1, 2}, {0, 1}, {1, 0, 2}, {0, 0, 1, 2}, {2}}) {
    std::vector<std::byte> part;
    for (const size_t i : order) part.insert(part.end(), frames[i].begin(), frames[i].end());
    EXPECT_THAT(ReadAs(header_, part), IsError(ErrorCode::kDataLoss, kName));
  }
}

TEST_F(PartFileTest, ImpossibleContentsOfAFrameAreRefused) {
  records_.resize(1);
  CAIRN_ASSERT_OK(Write());
  const std::vector<uint64_t> good = Words();
  CAIRN_ASSERT_OK(ReadAs(header_, Framed(good)));
  const auto refuses = [&](size_t at, uint64_t word) {
    std::vector<uint64_t> words = good;
    words[at] = word;
    return !ReadAs(header_, Framed(words));
  };
  constexpr size_t kRecord = kPartHeaderWords;
  EXPECT_TRUE(refuses(4, 1)) << "the second frame";
  EXPECT_TRUE(refuses(4, uint64_t{2} << 32)) << "neither the last frame nor another";
  EXPECT_TRUE(refuses(kRecord, 0)) << "no key";
  EXPECT_TRUE(refuses(kRecord, ~uint64_t{0})) << "a record that is longer than the frame";
  EXPECT_FALSE(ReadAs(header_, Framed(std::span(good).first(kRecord - 1))));
  const auto odd = std::as_bytes(std::span(good)).first(good.size() * sizeof(uint64_t) - 1);
  EXPECT_FALSE(ReadAs(header_, FrameRecord(kPartFrame, odd).value()));
}

TEST_F(PartFileTest, PartOfAnotherRankAttemptStepOrStoreIsRefused) {
  CAIRN_ASSERT_OK(Write());
  PartHeader others[4] = {header_, header_, header_, header_};
  others[0].rank = 4;
  others[1].attempt = "0123456789abcdef0000000000000000-77-3";
  others[2].step = 78;
  others[3].world_size = 9;
  for (const PartHeader& other : others) {
    EXPECT_THAT(ReadAs(other, Object()), IsError(ErrorCode::kDataLoss, "another rank or attempt"));
  }
  PartHeader of_other_store = header_;
  of_other_store.store_uuid.fill(std::byte{8});
  EXPECT_THAT(ReadAs(of_other_store, Object()),
              IsError(ErrorCode::kConflict, "was replaced by another one"));
}

TEST_F(PartFileTest, ErrorOfTheCallbackEndsTheRead) {
  CAIRN_ASSERT_OK(Write());
  int calls = 0;
  const auto result = ReadPart(kName, Object(), header_, [&](const TableRecord&) -> Result<void> {
    ++calls;
    return Fail(ErrorCode::kCancelled, "enough");
  });
  EXPECT_THAT(result, IsError(ErrorCode::kCancelled, "enough"));
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace cairn::kv::internal
