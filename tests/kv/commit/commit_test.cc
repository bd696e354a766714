// Commits, loads, reopens, overwrites and deletes through the kv API.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "kv/base/options.h"
#include "kv/base/step_info.h"
#include "kv/read/snapshot.h"
#include "kv/step_writer.h"
#include "kv/store.h"
#include "tests/kv/byte_payload.h"
#include "tests/kv/sample_step.h"
#include "tests/kv/store_checks.h"
#include "tests/support/fault_hook.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::kv {
namespace {

using cairn::testing::IsError;
using cairn::testing::IsOk;
using cairn::testing::ScopedFaults;
using cairn::testing::ScopedTempDir;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

/// Removes what no step uses at once, so that tests see which files that is.
const StoreOptions kNoGrace{.grace = std::chrono::milliseconds(0)};

uint64_t SegmentFileCount(const std::string& directory) {
  using Files = std::filesystem::directory_iterator;
  return static_cast<uint64_t>(std::distance(Files(directory + "/segments"), Files()));
}

/// Returns the length of all segments and tables.
uint64_t StoredBytes(const std::string& directory) {
  uint64_t bytes = 0;
  for (const char* folder : {"/segments", "/tables"}) {
    for (const auto& file : std::filesystem::directory_iterator(directory + folder)) {
      bytes += file.file_size();
    }
  }
  return bytes;
}

class CommitTest : public ::testing::Test {
 protected:
  explicit CommitTest(const StoreOptions& options = kNoGrace,
                      const std::filesystem::path& place = {})
      : dir_(place) {
    auto store = Store::Open(path_, OpenMode::kWrite, options);
    EXPECT_TRUE(IsOk(store));
    store_ = *std::move(store);
  }

  ScopedTempDir dir_;
  const std::string path_ = dir_ / "store";
  std::unique_ptr<Store> store_;
};

/// With a grace period, which readers need.
class LatestTest : public CommitTest {
 protected:
  LatestTest() : CommitTest({}, cairn::testing::FastDirectory()) {}
};

TEST_F(CommitTest, LoadsWhatWasSavedAndAgainAfterReopening) {
  const SampleStep first = MakeSample(10), second = MakeSample(20);
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo info, SaveSample(*store_, first));
  EXPECT_EQ(info.step, 10u);
  EXPECT_EQ(info.reused_chunk_count, 0u);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto before, store_->Latest());
  ExpectSample(*before, first);
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo next, SaveSample(*store_, second));
  EXPECT_GT(next.reused_chunk_count, 0u);
  EXPECT_LT(next.written_bytes, next.logical_bytes);
  EXPECT_EQ(next.base_step, 10u);
  CAIRN_ASSERT_OK(store_->Close());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, ReadLatest(path_));
  EXPECT_THAT(snapshot->step_numbers(), ElementsAre(10u, 20u));
  ExpectSample(*snapshot, first, 10);
  ExpectSample(*snapshot, second);
  ExpectSound(*snapshot);
  ExpectNoLeftovers(path_);
}

TEST_F(CommitTest, StepThatExistsNeedsOverwrite) {
  CAIRN_ASSERT_OK(SaveSample(*store_, MakeSample(1)));
  const auto again = store_->Begin(1, {});
  EXPECT_THAT(again, IsError(ErrorCode::kConflict, "already exists"));
  EXPECT_EQ(again.error().step, 1u);
}

TEST_F(CommitTest, AStepToWhichAnotherRefersMustBeTheSameAtTheCommit) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo old, SaveSample(*store_, MakeSample(1, 0)));
  const auto commit = [&](uint64_t step) -> Result<StepInfo> {
    CAIRN_TRY_ASSIGN(const auto writer, store_->Begin(step, {}));
    writer->ReferTo(old);
    CAIRN_TRY(writer->SetStructure(std::vector<std::byte>(8)));
    return writer->Commit({});
  };
  CAIRN_ASSERT_OK(commit(5));
  CAIRN_ASSERT_OK(SaveSample(*store_, MakeSample(1, 1), /*overwrite=*/true));
  EXPECT_THAT(commit(6), IsError(ErrorCode::kConflict, "was deleted or replaced"));
  CAIRN_ASSERT_OK(store_->Delete(std::array<uint64_t, 1>{1}));
  EXPECT_THAT(commit(7), IsError(ErrorCode::kConflict, "was deleted or replaced"));
}

TEST_F(CommitTest, CloseRemovesWhatIsDue) {
  store_.reset();
  for (const auto grace : {std::chrono::milliseconds(1), std::chrono::milliseconds(3'600'000)}) {
    CAIRN_ASSERT_OK_AND_ASSIGN(store_, Store::Open(path_, OpenMode::kWrite, {.grace = grace}));
    CAIRN_ASSERT_OK(SaveSample(*store_, MakeSample(1)));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto report, store_->Delete(std::array<uint64_t, 1>{1}));
    EXPECT_GT(report.waiting_bytes, 0u);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    CAIRN_ASSERT_OK(store_->Close());
    EXPECT_EQ(SegmentFileCount(path_), grace < std::chrono::seconds(1) ? 0u : 1u);
  }
}

TEST_F(CommitTest, DeleteKeepsSegmentsThatLaterStepsReferTo) {
  for (const uint64_t step : {1, 2, 3}) CAIRN_ASSERT_OK(SaveSample(*store_, MakeSample(step)));
  EXPECT_EQ(SegmentFileCount(path_), 3u);

  CAIRN_ASSERT_OK_AND_ASSIGN(const auto dry, store_->Delete(std::array<uint64_t, 1>{2}, true));
  EXPECT_EQ(dry.steps, 1u);
  EXPECT_EQ(dry.segments, 1u);
  EXPECT_EQ(SegmentFileCount(path_), 3u);

  // Step 1 wrote the frozen tensors, so its segment remains. That of step 2 is removed.
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto base, store_->Delete(std::array<uint64_t, 1>{1}));
  EXPECT_EQ(base.segments, 0u);
  const uint64_t bytes_before = StoredBytes(path_);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto middle, store_->Delete(std::array<uint64_t, 1>{2}));
  EXPECT_EQ(middle.segments, 1u);
  EXPECT_GE(middle.freed_bytes, dry.freed_bytes);
  EXPECT_EQ(middle.freed_bytes, bytes_before - StoredBytes(path_));
  EXPECT_EQ(SegmentFileCount(path_), 2u);
  ExpectSteps(path_, {{3, MakeSample(3)}});

  CAIRN_ASSERT_OK_AND_ASSIGN(const auto last, store_->Delete(std::array<uint64_t, 1>{3}));
  EXPECT_EQ(last.segments, 2u);
  EXPECT_EQ(SegmentFileCount(path_), 0u);
  ExpectNoLeftovers(path_);
  // Steps can be saved to an emptied store, also under a deleted number.
  CAIRN_ASSERT_OK(SaveSample(*store_, MakeSample(3, 7)));
  ExpectSteps(path_, {{3, MakeSample(3, 7)}});
}

TEST_F(CommitTest, DeleteOfAnUnknownStepDeletesNothing) {
  CAIRN_ASSERT_OK(SaveSample(*store_, MakeSample(1)));
  CAIRN_ASSERT_OK(SaveSample(*store_, MakeSample(2)));
  EXPECT_THAT(store_->Delete(std::array<uint64_t, 2>{1, 5}),
              IsError(ErrorCode::kNotFound, "no such step; the store has 1, 2"));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, LoadAll(path_));
  EXPECT_EQ(steps.size(), 2u);
}

TEST_F(CommitTest, DeletesManyStepsInOneWrite) {
  const SampleShape small{.tensor_count = 3, .largest_bytes = 3'000};
  for (uint64_t step = 0; step < 8; ++step) {
    CAIRN_ASSERT_OK(SaveSample(*store_, MakeSample(step, 0, small)));
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto report,
                             store_->Delete(std::array<uint64_t, 5>{6, 0, 1, 4, 1}));
  EXPECT_EQ(report.steps, 4u);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store_->Latest());
  EXPECT_THAT(snapshot->step_numbers(), ElementsAre(2u, 3u, 5u, 7u));
  ExpectSound(*snapshot);
}

TEST_F(CommitTest, AbandonedWriterLeavesNothing) {
  const std::vector<std::byte> payload = RandomBytes(1, 300'000);
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, store_->Begin(1, {}));
    CAIRN_ASSERT_OK(writer->Append(CopiedPayload(payload), SegmentAlignment::k64));
    EXPECT_EQ(writer->written_bytes(), payload.size());
    EXPECT_THAT(store_->Begin(2, {}), IsError(ErrorCode::kFailedPrecondition, "still running"));
    EXPECT_THAT(store_->Close(), IsError(ErrorCode::kFailedPrecondition, "still running"));
  }
  ExpectNoLeftovers(path_);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store_->Latest());
  EXPECT_THAT(snapshot->step_numbers(), IsEmpty());
  EXPECT_THAT(snapshot->FindStep(std::nullopt), IsError(ErrorCode::kNotFound, "no steps yet"));
}

// The segment of many chunks is sealed while their records are written to the table.
TEST_F(CommitTest, SegmentOfManyChunksIsSealedBeforeTheStepExists) {
  constexpr uint64_t kCount = 5000;
  const auto key = [](uint64_t i) { return ChunkKey(fmt::format("tensor.{:05}", i), {}); };
  const auto write = [&](uint64_t step) -> Result<StepInfo> {
    CAIRN_TRY_ASSIGN(auto writer, store_->Begin(step, {}));
    for (uint64_t i = 0; i < kCount; ++i) {
      const auto bytes = std::as_bytes(std::span(&i, 1));
      CAIRN_TRY_ASSIGN(const auto appended,
                       writer->Append(CopiedBytes(bytes), SegmentAlignment::kNone));
      CAIRN_TRY(writer->AddChunk(key(i),
                                 {.sizes = {},
                                  .extents = appended.extent,
                                  .digest = appended.digest,
                                  .since_step = step,
                                  .statistics = {}},
                                 /*reused=*/false));
    }
    CAIRN_TRY(writer->SetStructure(std::as_bytes(std::span("structure"))));
    return writer->Commit({});
  };

  {
    const ScopedFaults faults(cairn::testing::FailAt("segment.sync", 1, EIO));
    EXPECT_THAT(write(1), IsError(ErrorCode::kUnavailable, "sync"));
  }
  EXPECT_EQ(SegmentFileCount(path_), 0u);
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo info, write(2));
  EXPECT_EQ(info.chunk_count, kCount);

  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store_->Latest());
  EXPECT_THAT(snapshot->step_numbers(), ElementsAre(2u));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto record,
                             snapshot->Get(Column::kChunks, info, key(kCount - 1)));
  ASSERT_TRUE(record.has_value());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto structure, snapshot->Get(Column::kStructures, info, ""));
  EXPECT_TRUE(structure.has_value());
}

TEST_F(CommitTest, DigestsOfPayloadAreGivenOrComputed) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, store_->Begin(1, {}));
  const std::vector<std::byte> payload = RandomBytes(5, 3 * kPageBytes + 5);
  std::vector<uint64_t> page_digests;
  AppendPageDigests(payload, page_digests);
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const auto given,
      writer->Append(CopiedPayload(payload), SegmentAlignment::k4096, page_digests));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto computed,
                             writer->Append(CopiedPayload(payload), SegmentAlignment::kNone));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto borrowed,
                             writer->Append(BorrowedPayload(payload), SegmentAlignment::kNone));
  for (const auto& appended : {given, computed, borrowed}) {
    EXPECT_EQ(appended.digest, PayloadDigest(payload));
  }
  EXPECT_EQ(given.extent.offset_bytes % 4096, 0u);
  EXPECT_EQ(computed.extent.offset_bytes, given.extent.offset_bytes + payload.size());
}

// Threads that look for the newest root at the same time may find different ones.
TEST_F(LatestTest, ThreadsOfOneReaderNeverGoBack) {
  CAIRN_ASSERT_OK(store_->SetRetention({.keep_last = 2}));
  const SampleShape tiny{.tensor_count = 1, .largest_bytes = 10};
  CAIRN_ASSERT_OK(SaveSample(*store_, MakeSample(1, 0, tiny)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader, Store::Open(path_, OpenMode::kRead));
  std::atomic<uint64_t> committed = 1;
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] {
      while (!stop) {
        const uint64_t least = committed;
        const auto snapshot = reader->Latest();
        ASSERT_TRUE(IsOk(snapshot));
        EXPECT_GE((*snapshot)->step_numbers().back(), least);
      }
    });
  }
  for (uint64_t step = 2; step <= 400; ++step) {
    CAIRN_EXPECT_OK(SaveSample(*store_, MakeSample(step, 0, tiny)));
    committed = step;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_F(LatestTest, ReadersAndClosedStoresChangeNothing) {
  CAIRN_ASSERT_OK(SaveSample(*store_, MakeSample(1)));
  CAIRN_ASSERT_OK(store_->Close());
  CAIRN_ASSERT_OK(store_->Close());
  EXPECT_THAT(store_->Latest(), IsError(ErrorCode::kFailedPrecondition, "closed"));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader, Store::Open(path_, OpenMode::kRead));
  for (const auto& [refused, why] :
       {std::pair(store_.get(), "closed"), {reader.get(), "reading only"}}) {
    EXPECT_THAT(refused->Begin(2, {}), IsError(ErrorCode::kFailedPrecondition, why));
    EXPECT_THAT(refused->Delete(std::array<uint64_t, 1>{1}),
                IsError(ErrorCode::kFailedPrecondition, why));
  }
}

}  // namespace
}  // namespace cairn::kv
