// Several ranks and one attempt: parts of an attempt are joined, and never those of different ones.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "kv/base/options.h"
#include "kv/base/step_info.h"
#include "kv/commit/internal/part_file.h"
#include "kv/root/internal/kv_records.h"
#include "kv/segment/internal/segment_stream.h"
#include "kv/state/internal/attempt_outcome.h"
#include "kv/state/internal/store_state.h"
#include "kv/step_writer.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "kv/store.h"
#include "tests/kv/byte_payload.h"
#include "tests/kv/sample_step.h"
#include "tests/kv/store_checks.h"
#include "tests/support/fault_hook.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::kv {
namespace {

using cairn::testing::IsError;
using cairn::testing::IsOk;
using cairn::testing::ScopedTempDir;
using internal::FaultyStorage;
using internal::MemoryStorage;
using internal::StorageCall;
using internal::StorageFault;
using internal::StorageOperation;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

constexpr auto kNow = std::chrono::steady_clock::time_point::min();
constexpr auto kNever = std::chrono::steady_clock::time_point::max();

class RanksTest : public ::testing::Test {
 protected:
  void SetUp() override { OpenWriter(); }

  void OpenWriter() {
    writer_.reset();
    CAIRN_ASSERT_OK_AND_ASSIGN(writer_, Store::Open(path(), OpenMode::kWrite));
  }

  std::unique_ptr<Store> Join() {
    auto store = JoinSession(path(), *writer_);
    EXPECT_TRUE(IsOk(store));
    return store ? *std::move(store) : nullptr;
  }

  /// A writer of one of `world_size` ranks at step 1, to which this rank has added one chunk.
  std::unique_ptr<StepWriter> Begin(Store& store, uint32_t rank, const std::string& attempt,
                                    std::chrono::steady_clock::time_point deadline = kNow,
                                    uint32_t world_size = 2) {
    auto writer = store.Begin(1, {.rank = rank,
                                  .world_size = world_size,
                                  .attempt = attempt,
                                  .deadline = deadline,
                                  .decision_deadline = kNow});
    EXPECT_TRUE(IsOk(writer));
    EXPECT_TRUE(IsOk(SaveChunk(**writer, 1, ChunkKey("w", std::array{uint64_t{5'000} * rank}),
                               CopiedPayload(RandomBytes(rank + 7, 5'000)))));
    return writer ? *std::move(writer) : nullptr;
  }

  Result<void> Gather(StepWriter& writer) {
    OtherRanks others;
    return writer.Gather(others);
  }

  std::string path() const { return dir_ / "store"; }

  ScopedTempDir dir_{std::filesystem::exists("/dev/shm") ? "/dev/shm" : ""};
  std::unique_ptr<Store> writer_;
};

/// An attempt of two ranks, of which rank 1 has begun.
class TwoRanksTest : public RanksTest {
 protected:
  void SetUp() override {
    RanksTest::SetUp();
    other_ = Join();
    attempt_ = writer_->NextAttempt(1);
    part_ = Begin(*other_, 1, attempt_);
  }
  /// Returns the writer of rank 0, which has gathered the part and can commit.
  std::unique_ptr<StepWriter> GatherPart() {
    auto own = Begin(*writer_, 0, attempt_, kNever);
    EXPECT_TRUE(IsOk(Gather(*own)));
    EXPECT_TRUE(IsOk(own->SetStructure(std::vector<std::byte>(8))));
    return own;
  }

  std::unique_ptr<Store> other_;
  std::string attempt_;
  std::unique_ptr<StepWriter> part_;
};

TEST_F(RanksTest, ASampleOfSeveralRanksReadsAsThatOfOne) {
  std::vector<std::unique_ptr<Store>> others;
  for (int i = 0; i < 3; ++i) others.push_back(Join());
  CAIRN_ASSERT_OK(SaveSample(*writer_, MakeSample(1)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo info,
                             SaveSampleByRanks(*writer_, others, MakeSample(2)));
  EXPECT_EQ(info.world_size, 4u);
  EXPECT_EQ(info.chunk_count, (*writer_->Latest())->FindStep(1)->chunk_count);
  EXPECT_GT(info.reused_chunk_count, 0u);
  ExpectSteps(path(), {{1, MakeSample(1)}, {2, MakeSample(2)}});
  ExpectSound(*writer_);
}

TEST_F(RanksTest, AStepOfSeveralRanksIsRestoredFromItsTable) {
  std::vector<std::unique_ptr<Store>> others;
  for (int i = 0; i < 2; ++i) others.push_back(Join());
  CAIRN_ASSERT_OK(SaveSampleByRanks(*writer_, others, MakeSample(2)));
  CAIRN_ASSERT_OK(writer_->Close());
  std::filesystem::remove_all(path() + "/roots");
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto report, Store::Rebuild(path()));
  EXPECT_EQ(report.steps, 1u);
  EXPECT_THAT(report.lost, IsEmpty());
  ExpectSteps(path(), {{2, MakeSample(2)}});
}

TEST_F(RanksTest, ALateRankOfADeadRunIsNotAddedToTheNextOne) {
  const auto zombie = Join();
  const std::string old_attempt = zombie->NextAttempt(1);
  auto zombie_writer = Begin(*zombie, 1, old_attempt);
  writer_->NextAttempt(1);
  OpenWriter();  // the job is started again, and its ranks count attempts from 0 again

  EXPECT_THAT(zombie_writer->Prepare({}), IsError(ErrorCode::kUnavailable, "another job"));
  zombie_writer.reset();
  const auto second_writer = Begin(*zombie, 1, zombie->NextAttempt(1));
  EXPECT_THAT(second_writer->Prepare({}), IsError(ErrorCode::kUnavailable, "another job"));

  const auto own = Begin(*writer_, 0, writer_->NextAttempt(1));
  EXPECT_THAT(Gather(*own), IsError(ErrorCode::kUnavailable, "1 of 2 ranks"));
}

TEST_F(RanksTest, ARankThatIsLateForOneAttemptIsNotAddedToTheNext) {
  const auto late = Join();
  const std::string first = writer_->NextAttempt(1);
  ASSERT_EQ(late->NextAttempt(1), first);
  const auto late_writer = Begin(*late, 1, first);
  {
    const auto own = Begin(*writer_, 0, first);
    const auto gathered = Gather(*own);
    ASSERT_THAT(gathered, IsError(ErrorCode::kUnavailable, "deadline: 1"));
    Error error = gathered.error();
    error.hint = Hint::kOverwrite;
    CAIRN_ASSERT_OK(writer_->FailAttempt(first, 0, error));
  }
  const std::string second = writer_->NextAttempt(1);
  {
    const auto own = Begin(*writer_, 0, second);
    CAIRN_ASSERT_OK(late_writer->Prepare({}));
    EXPECT_THAT(Gather(*own), IsError(ErrorCode::kUnavailable, "deadline: 1"));
  }
  // It reads the outcome of its attempt, and removes its files.
  const auto decision = late_writer->AwaitDecision();
  EXPECT_THAT(decision, IsError(ErrorCode::kUnavailable, "deadline: 1"));
  EXPECT_THAT(decision, cairn::testing::HasHint(Hint::kOverwrite));
}

TEST_F(RanksTest, APartOfAnotherAttemptUnderTheRightNameIsRefused) {
  const auto other = Join();
  const std::string first = writer_->NextAttempt(1), second = writer_->NextAttempt(1);
  CAIRN_ASSERT_OK(Begin(*other, 1, first)->Prepare({}));
  const auto own = Begin(*writer_, 0, second);
  std::filesystem::create_directories(path() + "/pending/" + second);
  std::filesystem::copy_file(path() + "/pending/" + first + "/1.part",
                             path() + "/pending/" + second + "/1.part");
  EXPECT_THAT(Gather(*own), IsError(ErrorCode::kDataLoss, "another rank or attempt"));
}

class ManyRanksTest : public RanksTest {
 protected:
  static constexpr uint32_t kRanks = 150;

  void SetUp() override {
    RanksTest::SetUp();
    attempt_ = writer_->NextAttempt(1);
    const auto others = Join();
    for (uint32_t rank = 1; rank < kRanks; ++rank) {
      CAIRN_ASSERT_OK(Begin(*others, rank, attempt_, kNow, kRanks)->Prepare({}));
    }
  }
  std::string PartPath(uint32_t rank) const {
    return fmt::format("{}/pending/{}/{}.part", path(), attempt_, rank);
  }

  std::string attempt_;
};

TEST_F(ManyRanksTest, PartsAreAddedInTheOrderOfTheRanks) {
  const auto own = Begin(*writer_, 0, attempt_, kNever, kRanks);
  OtherRanks others;
  CAIRN_ASSERT_OK(own->Gather(others));
  std::vector<std::string> expected;
  for (uint32_t rank = 1; rank < kRanks; ++rank) expected.push_back(fmt::format("{}:w", rank));
  EXPECT_EQ(others.chunks, expected);
  CAIRN_ASSERT_OK(own->SetStructure(std::vector<std::byte>(8)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo info, own->Commit({}));
  EXPECT_EQ(info.chunk_count, kRanks);
  ExpectSound(*writer_);
}

TEST_F(ManyRanksTest, ADamagedPartIsReportedWhileALaterOneIsAwaited) {
  for (const uint32_t rank : {5u, 140u}) {
    std::filesystem::resize_file(PartPath(rank), std::filesystem::file_size(PartPath(rank)) - 1);
  }
  std::filesystem::remove(PartPath(149));
  const auto own = Begin(*writer_, 0, attempt_, kNever, kRanks);
  EXPECT_THAT(Gather(*own), IsError(ErrorCode::kDataLoss, "/5.part"));
}

TEST_F(TwoRanksTest, ALargePartIsAddedInPieces) {
  std::vector<Extent> extents;
  for (uint64_t i = 0; i < 500; ++i) {
    extents.push_back({.segment_id = 1 + i % 2, .offset_bytes = i << 20, .length_bytes = 64 << 10});
  }
  const uint64_t length_bytes = extents.size() * (64 << 10);
  constexpr uint64_t kChunks = 2500;  // about 40 MB of records
  for (uint64_t i = 0; i < kChunks; ++i) {
    CAIRN_ASSERT_OK(
        part_->AddChunk(ChunkKey("x", std::array{i * length_bytes}),
                        {.sizes = {length_bytes}, .extents = Extents(extents), .since_step = 5},
                        /*reused=*/true));
  }
  CAIRN_ASSERT_OK(part_->Prepare({}));
  const auto own = Begin(*writer_, 0, attempt_, kNever);
  OtherRanks others;
  CAIRN_ASSERT_OK(own->Gather(others));
  EXPECT_EQ(others.chunks.size(), kChunks + 1);
  EXPECT_EQ(std::ranges::count(others.chunks, "1:x"), kChunks);
}

TEST_F(RanksTest, TheNextWriterRemovesWhatDeadRanksLeft) {
  const auto other = Join();
  CAIRN_ASSERT_OK(Begin(*other, 1, writer_->NextAttempt(1))->Prepare({}));
  EXPECT_FALSE(std::filesystem::is_empty(path() + "/pending"));
  OpenWriter();
  ExpectNoLeftovers(path());
}

TEST_F(TwoRanksTest, AReferenceToARemovedSegmentFailsOnlyTheCommit) {
  CAIRN_ASSERT_OK(SaveSample(*writer_, MakeSample(5)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto base, other_->Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto segments, base->Segments());
  CAIRN_ASSERT_OK(part_->AddChunk(ChunkKey("x", std::array{uint64_t{0}}),
                                  {.sizes = {10},
                                   .extents = Extent{.segment_id = segments.front().segment_id,
                                                     .offset_bytes = 4096,
                                                     .length_bytes = 10},
                                   .since_step = 5},
                                  /*reused=*/true));
  CAIRN_ASSERT_OK(part_->Prepare({}));
  CAIRN_ASSERT_OK(writer_->Delete(std::array<uint64_t, 1>{5}));
  const auto own = GatherPart();
  EXPECT_THAT(own->Commit({}), IsError(ErrorCode::kConflict, "was deleted or replaced"));
}

TEST_F(TwoRanksTest, ARankWithoutAnOutcomeFindsTheStepInTheNewestRoot) {
  CAIRN_ASSERT_OK(part_->Prepare({}));
  CAIRN_ASSERT_OK(GatherPart()->Commit({}));
  std::filesystem::remove_all(path() + "/pending/" + attempt_);
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo info, part_->AwaitDecision());
  EXPECT_EQ(info.generation, (*writer_->Latest())->FindStep(1)->generation);
}

// The root is durable, but the commit reports a failure, and the root cannot be read.
TEST_F(TwoRanksTest, NobodyRemovesAnythingWhileTheOutcomeIsUnknown) {
  CAIRN_ASSERT_OK(part_->Prepare({}));
  {
    const auto own = GatherPart();
    Result<StepInfo> committed;
    {
      bool failed = false;
      cairn::testing::ScopedFaults faults([&](const cairn::testing::FaultPass& pass, uint32_t) {
        failed = failed || pass.point == "roots.linked";
        return failed ? EIO : 0;
      });
      committed = own->Commit({});
    }
    ASSERT_FALSE(committed);
    EXPECT_THAT(committed, IsError(ErrorCode::kUnavailable, "unknown whether root"));
    EXPECT_THAT(writer_->Begin(2, {}), IsError(ErrorCode::kFailedPrecondition, "open it again"));
    CAIRN_ASSERT_OK(writer_->FailAttempt(attempt_, 0, committed.error()));
  }
  EXPECT_FALSE(part_->AwaitDecision());
  part_.reset();
  OpenWriter();
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, writer_->Latest());
  ASSERT_EQ(snapshot->step_numbers().size(), 1u);
  ExpectSound(*snapshot);
}

// The rank was told only that rank 0 had closed the store, if it was slower than that.
TEST_F(TwoRanksTest, TheCauseOfAFailureRemainsWhenRank0ClosesTheStore) {
  const Error cause{.code = ErrorCode::kInvalidArgument, .message = "the cause", .key = "w"};
  for (const bool is_prepared : {false, true}) {
    if (is_prepared) CAIRN_ASSERT_OK(part_->Prepare({}));
    CAIRN_ASSERT_OK(writer_->FailAttempt(attempt_, 0, cause));
    CAIRN_ASSERT_OK(writer_->Close());
    if (!is_prepared) {
      EXPECT_THAT(part_->Prepare({}), IsError(ErrorCode::kInvalidArgument, "the cause"));
    } else {
      EXPECT_THAT(part_->AwaitDecision(), IsError(ErrorCode::kInvalidArgument, "the cause"));
    }
    part_.reset();
    OpenWriter();  // which removes what remains
    EXPECT_TRUE(std::filesystem::is_empty(path() + "/pending"));
    other_ = Join();
    attempt_ = writer_->NextAttempt(1);
    part_ = Begin(*other_, 1, attempt_);
  }
}

TEST_F(TwoRanksTest, APartThatMayHaveBeenCommittedIsNotRemoved) {
  CAIRN_ASSERT_OK(part_->Prepare({}));
  {
    const auto own = GatherPart();
    // The rank stops waiting before there is an outcome.
    part_.reset();
    CAIRN_ASSERT_OK(other_->FailAttempt(attempt_, 1,
                                        Error{.code = ErrorCode::kUnavailable, .message = "late"}));
    CAIRN_ASSERT_OK(own->Commit({}));
  }
  ExpectSound(*writer_);
}

// Rank 0 may read the part before the rank learns of the fault. The rank removed its segments, to
// which the committed step then referred.
TEST_F(RanksTest, APartWhosePutLosesItsResponseKeepsItsSegments) {
  for (const bool is_found : {true, false}) {
    const auto faulty = std::make_shared<FaultyStorage>(std::make_shared<MemoryStorage>("test"));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, Store::Open(faulty, OpenMode::kWrite));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto other, JoinSession(faulty, *writer));
    const std::string attempt = writer->NextAttempt(1);
    faulty->SetPlan([&](const StorageCall& call) {
      if (!call.name.ends_with("/1.part")) return StorageFault::kNone;
      if (call.operation == StorageOperation::kPutIfAbsent) return StorageFault::kConflict;
      return is_found ? StorageFault::kNone : StorageFault::kRefuse;
    });
    {
      const auto part = Begin(*other, 1, attempt);
      CAIRN_ASSERT_OK(
          part->Append(CopiedPayload(std::vector<std::byte>(100)), SegmentAlignment::k64));
      const auto prepared = part->Prepare({});
      EXPECT_EQ(prepared.has_value(), is_found);
      if (!is_found) {
        EXPECT_THAT(prepared.error().message, HasSubstr("the step may or may not exist"));
      }
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto segments, faulty->base()->List("segments/"));
    EXPECT_THAT(segments, SizeIs(1));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto parts, faulty->base()->List("pending/"));
    EXPECT_THAT(parts, SizeIs(1));
  }
}

TEST_F(TwoRanksTest, SharedRecordsThatDoNotMatchTheirNameAreRefused) {
  const auto add = [&](StepWriter& writer, uint8_t byte) {
    const SharedRecord record{
        .column = Column::kValues, .key = FqnKey("v"), .value = {std::byte{byte}}};
    CAIRN_ASSERT_OK(writer.AddShared({&record, 1}));
  };
  std::vector<std::filesystem::path> files;
  for (const uint8_t byte : {1, 2}) add(*part_, byte);
  for (const auto& file : std::filesystem::directory_iterator(path() + "/pending/" + attempt_)) {
    if (file.path().extension() == ".shared") files.push_back(file.path());
  }
  ASSERT_EQ(files.size(), 2u);
  CAIRN_ASSERT_OK(part_->Prepare({}));
  std::filesystem::remove(files[0]);
  std::filesystem::copy_file(files[1], files[0]);
  const auto own = Begin(*writer_, 0, attempt_, kNever);
  EXPECT_THAT(Gather(*own), IsError(ErrorCode::kDataLoss, "differs from their name"));
}

/// Puts a part of rank 1 with one record, which a rank adds only by mistake, or to do harm.
class ForgedPartTest : public RanksTest {
 protected:
  Result<void> GatherPartWith(const std::string& attempt, Column column, std::string_view key,
                              std::span<const std::byte> value, RankRecords& others) {
    const internal::StoreState& state = internal::StoreAccess::StateOf(*writer_);
    internal::PartWriter part(
        state.storage, internal::PartName(attempt, 1),
        {.store_uuid = state.uuid, .step = 1, .rank = 1, .world_size = 2, .attempt = attempt});
    CAIRN_TRY(part.Add({.key = TableKey(column, key), .value = value}));
    CAIRN_TRY(part.Finish());
    return Begin(*writer_, 0, attempt)->Gather(others);
  }
  void ExpectRefused(Column column, std::string_view key, std::span<const std::byte> value,
                     const std::string& words) {
    OtherRanks others;
    EXPECT_THAT(GatherPartWith(writer_->NextAttempt(1), column, key, value, others),
                IsError(ErrorCode::kDataLoss, words))
        << static_cast<int>(column) << " " << key.size() << " " << value.size();
  }
  static std::vector<std::byte> Chunk(const ChunkExtents& extents, std::vector<uint64_t> sizes) {
    return internal::EncodeChunk({.sizes = std::move(sizes), .extents = extents, .digest = {1, 2}});
  }
};

TEST_F(ForgedPartTest, ChunksArePassedOnWithTheirBoxes) {
  struct Chunks final : RankRecords {
    Result<void> AddShared(uint32_t, Column, std::string_view,
                           std::span<const std::byte>) override {
      return {};
    }
    Result<void> AddChunk(const RankChunk& chunk) override {
      text = fmt::format("{} {} {} {} {}", chunk.rank, chunk.fqn, chunk.offsets, chunk.sizes,
                         chunk.length_bytes);
      return {};
    }
    std::string text;
  } others;
  ChunkExtents extents(Extent{.segment_id = 1, .length_bytes = 16});
  extents.deltas = {{.segment_id = 2, .length_bytes = 7}};
  CAIRN_ASSERT_OK(GatherPartWith(writer_->NextAttempt(1), Column::kChunks,
                                 ChunkKey("a", std::array<uint64_t, 2>{3, 0}),
                                 Chunk(extents, {2, 8}), others));
  EXPECT_EQ(others.text, "1 a [3, 0] [2, 8] 16");
}

TEST_F(ForgedPartTest, DamagedChunksAreRefused) {
  const std::string key = ChunkKey("a", std::array{uint64_t{1}});
  ChunkExtents extents(Extent{.segment_id = 1, .length_bytes = 8});
  const std::vector<std::byte> record = Chunk(extents, {8});
  for (const std::string& bad : {std::string(), std::string("a"), key + "x"}) {
    ExpectRefused(Column::kChunks, bad, record, "malformed");
  }
  ExpectRefused(Column::kChunks, FqnKey("a"), record, "impossible sizes");
  for (const size_t size : {size_t{0}, record.size() / 2, record.size() - 1}) {
    ExpectRefused(Column::kChunks, key, std::span(record).first(size), "");
  }
  extents.deltas = {{.segment_id = 2, .length_bytes = 9}};
  ExpectRefused(Column::kChunks, key, Chunk(extents, {8}), "deltas larger");
}

TEST_F(ForgedPartTest, SegmentsOfOtherRanksAttemptsOrEpochsAreRefused) {
  const uint32_t epoch = internal::StoreAccess::StateOf(*writer_).epoch;
  const auto gather = [&](uint32_t rank, uint64_t n, uint32_t of_epoch, bool is_own) {
    const std::string attempt = writer_->NextAttempt(1);
    const internal::ObjectId id =
        internal::SegmentIdOf(of_epoch, is_own ? attempt : attempt + "0", rank, n);
    OtherRanks others;
    return GatherPartWith(attempt, Column::kSegments, NumberKey(id.id),
                          internal::EncodeSegment(internal::NewSegmentInfo(id)), others);
  };
  CAIRN_EXPECT_OK(gather(1, 0, epoch, true));
  const auto is_refused = IsError(ErrorCode::kDataLoss, "rank 1 contains a segment of another");
  EXPECT_THAT(gather(1, 1, epoch, true), is_refused);
  EXPECT_THAT(gather(2, 0, epoch, true), is_refused);
  EXPECT_THAT(gather(1, 0, epoch, false), is_refused);
  EXPECT_THAT(gather(1, 0, epoch + 1, true), is_refused);
}

TEST_F(ForgedPartTest, OtherRecordsAreRefused) {
  for (const Column column : {Column::kTensors, Column::kValues, Column::kUsage, Column::kTables}) {
    ExpectRefused(column, "a", std::vector<std::byte>(8),
                  fmt::format("column {}", static_cast<int>(column)));
  }
  ExpectRefused(Column::kStructures, "short", {}, "digest");
  ExpectRefused(Column::kSteps, "", {}, "");
  ExpectRefused(Column::kSegments, "", {}, "");
}

TEST_F(RanksTest, JoinRequiresAnOpenSession) {
  Join();
  StoreOptions options;
  options.session = writer_->session();
  CAIRN_ASSERT_OK(writer_->Close());
  EXPECT_THAT(Store::Open(path(), OpenMode::kJoinSession, options),
              IsError(ErrorCode::kFailedPrecondition, "the same directory"));
}

TEST_F(TwoRanksTest, InvalidFilesOfRanksAreIgnored) {
  CAIRN_ASSERT_OK(part_->Prepare({}));
  for (const char* rubbish : {"", "{", "[1]", "{\"committed\":\"yes\"}", "{\"error\":7}",
                              "{\"error\":{\"code\":\"x\",\"message\":3}}"}) {
    const std::string name = path() + "/pending/" + attempt_ + "/outcome";
    if (std::FILE* const file = std::fopen(name.c_str(), "w")) {
      std::fputs(rubbish, file);
      std::fclose(file);
    }
    EXPECT_THAT(part_->AwaitDecision(),
                IsError(ErrorCode::kUnavailable, "did not state the outcome"))
        << rubbish;
  }
}

}  // namespace
}  // namespace cairn::kv
