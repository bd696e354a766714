// Options that no store can use, and calls in an order that kv/step_writer.h does not allow: each
// is refused with an error, before anything is changed, and what was begun can be continued.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kv/base/options.h"
#include "kv/io/block_pool.h"
#include "kv/step_writer.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "kv/store.h"
#include "tests/kv/byte_payload.h"
#include "tests/kv/sample_step.h"
#include "tests/kv/store_checks.h"
#include "tests/support/result_matchers.h"

namespace cairn::kv {
namespace {

using cairn::testing::IsError;
using internal::MemoryStorage;
using ::testing::IsEmpty;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
constexpr uint32_t kMost32 = std::numeric_limits<uint32_t>::max();

TEST(MisuseTest, IoOptionsOutsideTheLimitsAreRefusedAndTheLimitsWork) {
  const std::vector<IoOptions> impossible = {
      {.block_bytes = 0},     {.block_bytes = 4095},         {.block_bytes = (1u << 30) + 1},
      {.block_bytes = kMost}, {.block_bytes = kMost - 4095}, {.queue_depth = 0},
      {.queue_depth = 1025},  {.queue_depth = kMost32}};
  for (const IoOptions& io : impossible) {
    SCOPED_TRACE(fmt::format("{} bytes, depth {}", io.block_bytes, io.queue_depth));
    const auto storage = std::make_shared<MemoryStorage>("m");
    EXPECT_THAT(Store::Open(storage, OpenMode::kWrite, {.io = io}),
                IsError(ErrorCode::kInvalidArgument, "blocks of 4096 to 1073741824 bytes"));
    EXPECT_THAT(*storage->List(""), IsEmpty());
  }
  for (const IoOptions& io :
       std::vector<IoOptions>{{.block_bytes = 4096, .queue_depth = 1},
                              {.block_bytes = 4097, .queue_depth = 2},
                              {.block_bytes = 1 << 30, .queue_depth = 1024}}) {
    SCOPED_TRACE(fmt::format("{} bytes, depth {}", io.block_bytes, io.queue_depth));
    const auto storage = std::make_shared<MemoryStorage>("m");
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store,
                               Store::Open(storage, OpenMode::kWrite, {.io = io}));
    CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(1)));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->Latest());
    ExpectSample(*snapshot, MakeSample(1));
  }
}

TEST(MisuseTest, AGracePeriodOfAnyLengthKeepsWhatWasDeleted) {
  using std::chrono::milliseconds;
  const auto storage = std::make_shared<MemoryStorage>("m");
  EXPECT_THAT(Store::Open(storage, OpenMode::kWrite, {.grace = milliseconds(-1)}),
              IsError(ErrorCode::kInvalidArgument, "must not be negative"));
  EXPECT_THAT(Store::Open(storage, OpenMode::kWrite, {.grace = milliseconds::min()}),
              IsError(ErrorCode::kInvalidArgument, "must not be negative"));
  EXPECT_THAT(*storage->List(""), IsEmpty());
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const auto store, Store::Open(storage, OpenMode::kWrite, {.grace = milliseconds::max()}));
  CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(1)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto before, store->Latest());
  CAIRN_ASSERT_OK(store->Delete(std::array{uint64_t{1}}));
  CAIRN_ASSERT_OK(SaveSample(*store, MakeSample(2)));
  ExpectSample(*before, MakeSample(1));
  store->AwaitChange(milliseconds::min());
}

TEST(MisuseTest, SegmentsEndBeforeTheirFootersAreTooLong) {
  const auto storage = std::make_shared<MemoryStorage>("m");
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(storage, OpenMode::kWrite));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, store->Begin(1, {}));
  const std::vector<std::byte> bytes = RandomBytes(7, 1);
  const std::string name(64 << 10, 'x');
  constexpr uint64_t kChunks = 1'030;
  for (uint64_t i = 0; i < kChunks; ++i) {
    CAIRN_ASSERT_OK(SaveChunk(*writer, 1, ChunkKey(name, std::array{i}), CopiedPayload(bytes),
                              SegmentAlignment::kNone));
  }
  CAIRN_ASSERT_OK(writer->SetStructure(bytes));
  CAIRN_ASSERT_OK(writer->Commit({}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto segments, snapshot->Segments());
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_EQ(segments[0].chunk_count + segments[1].chunk_count, kChunks);
  for (const SegmentInfo& segment : segments) EXPECT_LT(segment.file_bytes, 70u << 20);
}

class StepWriterMisuseTest : public ::testing::Test {
 protected:
  void SetUp() override {
    CAIRN_ASSERT_OK_AND_ASSIGN(store_, Store::Open(storage_, OpenMode::kWrite));
    CAIRN_ASSERT_OK_AND_ASSIGN(joined_, JoinSession(storage_, *store_));
  }

  Result<Extent> AppendAndAdd(StepWriter& writer) {
    return SaveChunk(writer, 1, ChunkKey("w", std::array{uint64_t{0}}), CopiedPayload(bytes_));
  }

  const std::shared_ptr<MemoryStorage> storage_ = std::make_shared<MemoryStorage>("m");
  const std::vector<std::byte> bytes_ = RandomBytes(7, 200'000);
  std::unique_ptr<Store> store_;
  std::unique_ptr<Store> joined_;
};

TEST_F(StepWriterMisuseTest, ARankAloneContinuesAfterCallsInTheWrongOrder) {
  constexpr ErrorCode kOrder = ErrorCode::kFailedPrecondition;
  constexpr ErrorCode kArgument = ErrorCode::kInvalidArgument;
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, store_->Begin(1, {}));
  OtherRanks others;
  EXPECT_THAT(writer->Gather(others), IsError(kOrder, "multi-rank store"));
  EXPECT_THAT(writer->AddShared({}), IsError(kOrder, "several ranks"));
  EXPECT_THAT(writer->Prepare({}), IsError(kOrder, "rank 0 commits"));
  EXPECT_THAT(writer->AwaitDecision(), IsError(kOrder, "after it has prepared"));
  EXPECT_THAT(writer->Commit({}), IsError(kOrder, "no structure"));
  EXPECT_THAT(writer->UseBlocks(nullptr), IsError(kOrder, "once"));
  const std::vector<uint64_t> digests(3);
  EXPECT_THAT(writer->Append(CopiedPayload(bytes_), SegmentAlignment::k64, digests),
              IsError(kArgument, "one digest per page"));
  EXPECT_THAT(writer->AppendPages(CopiedPayload(bytes_), {}, digests),
              IsError(kArgument, "one digest per page"));
  EXPECT_THAT(writer->Append(CopiedPayload({}), SegmentAlignment::k64),
              IsError(kArgument, "must have bytes"));
  std::vector<uint64_t> of_pages;
  AppendPageDigests(bytes_, of_pages);
  for (const PageRange& range : std::vector<PageRange>{{1, 1}, {2, 1}, {0, 5}, {7, kMost}}) {
    EXPECT_THAT(writer->AppendPages(CopiedPayload(bytes_), {&range, 1}, of_pages),
                IsError(kArgument, "ascend"));
  }
  EXPECT_THAT(writer->AddRecord(Column::kSteps, FqnKey("w"), bytes_),
              IsError(kArgument, "records of this kind"));
  EXPECT_THAT(writer->AddChunk(ChunkKey("w", {}), {.extents = Extent{.length_bytes = 1}}, false),
              IsError(kOrder, "before the next one"));
  CAIRN_ASSERT_OK(AppendAndAdd(*writer));
  CAIRN_ASSERT_OK(writer->UseBlocks(std::make_shared<BlockPool>(1 << 20, 2)));
  EXPECT_THAT(writer->UseBlocks(std::make_shared<BlockPool>(1 << 20, 2)), IsError(kOrder, "once"));
  EXPECT_THAT(writer->CommitSame({}), IsError(kOrder, "has added nothing"));
  CAIRN_ASSERT_OK(writer->SetStructure(bytes_));
  EXPECT_THAT(writer->SetStructure(bytes_), IsError(kOrder, "once"));
  CAIRN_ASSERT_OK(writer->Commit({}));
  EXPECT_THAT(writer->Commit({}), IsError(kOrder, "committed"));
  ExpectSound(*store_);
}

TEST_F(StepWriterMisuseTest, RanksDoNotTakeTheRolesOfOthers) {
  constexpr ErrorCode kOrder = ErrorCode::kFailedPrecondition;
  const std::string attempt = store_->NextAttempt(1);
  const auto begin = [&](Store& store, uint32_t rank) {
    return store.Begin(1, {.rank = rank, .world_size = 2, .attempt = attempt});
  };
  OtherRanks others;
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto other, begin(*joined_, 1));
  EXPECT_THAT(other->Gather(others), IsError(kOrder, "rank 0"));
  EXPECT_THAT(other->SetStructure(bytes_), IsError(kOrder, "rank 0"));
  EXPECT_THAT(other->Commit({}), IsError(kOrder, "rank 0"));
  EXPECT_THAT(other->CommitSame({}), IsError(kOrder, "one rank"));
  EXPECT_THAT(other->AwaitDecision(), IsError(kOrder, "prepared"));
  CAIRN_ASSERT_OK(AppendAndAdd(*other));
  CAIRN_ASSERT_OK(other->Prepare({}));
  EXPECT_THAT(other->Prepare({}), IsError(kOrder, "committed"));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto own, begin(*store_, 0));
  EXPECT_THAT(own->Prepare({}), IsError(kOrder, "rank 0 commits"));
  EXPECT_THAT(own->Commit({}), IsError(kOrder, "gathered"));
  CAIRN_ASSERT_OK(own->Gather(others));
  EXPECT_THAT(own->Gather(others), IsError(kOrder, "once"));
  EXPECT_THAT(own->AddShared({}), IsError(kOrder, "before Gather"));
  CAIRN_ASSERT_OK(own->SetStructure(bytes_));
  CAIRN_ASSERT_OK(own->Commit({}));
  CAIRN_ASSERT_OK(other->AwaitDecision());
}

TEST_F(StepWriterMisuseTest, OnlyNamesOfThisSessionAreAttempts) {
  const std::string& session = store_->session();
  const std::vector<std::string> names = {
      "x",
      "../../a",
      session,
      session + "-1/0",
      session + "-1-0\n",
      session + "-compact-1",
      "0123456789abcdef0000000000000000-1-0",
      session + "-1-" + std::string(60, '0'),
  };
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    EXPECT_THAT(store_->Begin(1, {.attempt = name}),
                IsError(ErrorCode::kInvalidArgument, "not an attempt"));
    EXPECT_THAT(joined_->Begin(1, {.rank = 1, .world_size = 2, .attempt = name}),
                IsError(ErrorCode::kInvalidArgument, "not an attempt"));
    EXPECT_THAT(store_->FailAttempt(name, 0, {}),
                IsError(ErrorCode::kInvalidArgument, "not an attempt"));
  }
  EXPECT_THAT(store_->FailAttempt("", 0, {}),
              IsError(ErrorCode::kInvalidArgument, "not an attempt"));
  CAIRN_ASSERT_OK(SaveSample(*store_, MakeSample(1)));
}

TEST_F(StepWriterMisuseTest, OnlyAWriterOpensASession) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader, Store::Open(storage_, OpenMode::kRead));
  for (Store* const store : {reader.get(), joined_.get()}) {
    EXPECT_THAT(store->OpenSession(), IsError(ErrorCode::kFailedPrecondition, "for reading only"));
  }
  for (const std::string session :
       {"", "x", "../00000001aaaaaaaa", "00000001aaaaaaaa/..", "0000000x", "00000001 aaaaaa!"}) {
    SCOPED_TRACE(session);
    EXPECT_THAT(Store::Open(storage_, OpenMode::kJoinSession, {.session = session}),
                IsError(ErrorCode::kInvalidArgument, "session"));
  }
}

}  // namespace
}  // namespace cairn::kv
