// Goal: where each request takes long, opening, loading and committing wait for few of them in
// sequence. The limits are those of docs/reader-cache.md and of the issue that introduced stores in
// buckets.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <thread>

#include "kv/base/key.h"
#include "kv/base/read_range.h"
#include "kv/root/internal/kv_records.h"
#include "kv/storage/cache/internal/cached_storage.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "kv/store.h"
#include "tests/kv/byte_payload.h"
#include "tests/kv/sample_step.h"
#include "tests/kv/storage/round_trip_storage.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::kv {
namespace {

using cairn::testing::ScopedTempDir;
using internal::CachedStorage;
using internal::MemoryStorage;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

constexpr uint64_t kChunksPerTensor = 1000;
constexpr uint64_t kChunkBytes = 512;

/// A million chunks take a second to write; sanitizers need ten.
uint64_t ChunkCount() { return kChecksEverything ? 100'000 : 1'000'000; }

std::string TensorName(uint64_t tensor) { return fmt::format("layers.{:04}.weight", tensor); }

/// Saves `chunk_count` chunks. Those of all tensors share the payload.
Result<void> SaveChunks(Store& store, uint64_t step, uint64_t chunk_count) {
  const std::vector<std::byte> bytes = RandomBytes(step, kChunksPerTensor * kChunkBytes);
  CAIRN_TRY_ASSIGN(const auto writer, store.Begin(step, {}));
  CAIRN_TRY_ASSIGN(const auto appended,
                   writer->Append(CopiedPayload(bytes), SegmentAlignment::k64));
  for (uint64_t i = 0; i < chunk_count; ++i) {
    const std::string key =
        ChunkKey(TensorName(i / kChunksPerTensor), std::array{i % kChunksPerTensor * kChunkBytes});
    Extent extent = appended.extent;
    extent.offset_bytes += i % kChunksPerTensor * kChunkBytes;
    extent.length_bytes = kChunkBytes;
    // As hard to compress as a digest.
    const uint64_t mixed = (i + 1) * 0x9E3779B97F4A7C15;
    CAIRN_TRY(writer->AddChunk(key,
                               {.sizes = {kChunkBytes},
                                .extents = extent,
                                .digest = {.lo = mixed, .hi = ~mixed * mixed},
                                .since_step = step},
                               /*reused=*/true));
  }
  CAIRN_TRY(writer->SetStructure(std::as_bytes(std::span("structure"))));
  CAIRN_TRY(writer->Commit({}));
  return {};
}

/// Reads the records of the chunks of `count` tensors, then their payload.
Result<void> ReadTensors(const Snapshot& snapshot, uint64_t first, uint64_t count) {
  CAIRN_TRY_ASSIGN(const StepInfo step, snapshot.FindStep(std::nullopt));
  std::vector<ReadRange> ranges;
  std::vector<std::vector<std::byte>> targets;
  for (uint64_t tensor = first; tensor < first + count; ++tensor) {
    CAIRN_TRY(snapshot.Scan(
        Column::kChunks, step, FqnKey(TensorName(tensor)),
        [&](std::string_view, std::span<const std::byte> record) -> Result<bool> {
          CAIRN_TRY_ASSIGN(const ChunkExtents stored, internal::DecodeChunkExtents(record));
          const Extents& extents = stored.payload;
          targets.emplace_back(kChunkBytes);
          ranges.push_back({.segment_id = extents.front().segment_id,
                            .offset_bytes = extents.front().offset_bytes,
                            .target = targets.back()});
          return true;
        }));
  }
  if (ranges.size() != count * kChunksPerTensor) return Fail(ErrorCode::kInternal, "lost chunks");
  CAIRN_TRY(
      snapshot.Read(ranges, 2, [](size_t, std::span<const std::byte>) { return Result<void>(); }));
  return {};
}

class RoundTripsTest : public ::testing::Test {
 protected:
  /// Creates the store, without latency.
  void SaveStep(uint64_t chunk_count) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(base_, OpenMode::kWrite));
    CAIRN_ASSERT_OK(SaveChunks(*store, 1, chunk_count));
    remote_->SetLatency(true);
  }
  /// Opens the store and reads the first key and its payload.
  void OpenAndRead(const std::shared_ptr<Storage>& storage) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, ReadLatest(storage));
    CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo step, snapshot->FindStep(std::nullopt));
    CAIRN_ASSERT_OK_AND_ASSIGN(
        const auto record,
        snapshot->Get(Column::kChunks, step, ChunkKey(TensorName(0), std::array{uint64_t{0}})));
    EXPECT_TRUE(record.has_value());
    CAIRN_ASSERT_OK(ReadTensors(*snapshot, 0, 1));
  }
  /// Fails the test, and lists the calls, if there were more than `limit` sequential round trips.
  void ExpectAtMost(uint64_t limit, const char* what) {
    fmt::print("{}: {} sequential round trips of {} calls\n", what, remote_->LongestChain(),
               remote_->Calls().size());
    EXPECT_LE(remote_->LongestChain(), limit)
        << fmt::format("{}", fmt::join(remote_->Calls(), "\n"));
  }

  const std::shared_ptr<MemoryStorage> base_ = std::make_shared<MemoryStorage>("far");
  const std::shared_ptr<RoundTripStorage> remote_ = std::make_shared<RoundTripStorage>(base_);
};

TEST_F(RoundTripsTest, ColdOpenAndFirstKeyOfManyChunks) {
  SaveStep(ChunkCount());
  OpenAndRead(remote_);
  ExpectAtMost(6, "cold open, first key and payload");
}

TEST_F(RoundTripsTest, WarmOpenAndFirstKeyOfManyChunks) {
  SaveStep(ChunkCount());
  const ScopedTempDir dir;
  OpenAndRead(
      std::make_shared<CachedStorage>(remote_, internal::CacheOptions{.directory = dir.path()}));
  remote_->Restart();
  OpenAndRead(
      std::make_shared<CachedStorage>(remote_, internal::CacheOptions{.directory = dir.path()}));
  ExpectAtMost(1, "warm open, first key and payload");
}

TEST_F(RoundTripsTest, PartialLoadOfOnePercent) {
  SaveStep(ChunkCount());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, ReadLatest(remote_));
  CAIRN_ASSERT_OK(ReadTensors(*snapshot, 0, 1));
  remote_->Restart();
  const uint64_t tensors = ChunkCount() / kChunksPerTensor;
  CAIRN_ASSERT_OK(ReadTensors(*snapshot, tensors / 2, tensors / 100));
  ExpectAtMost(3, "load of one percent");
}

/// Appends one chunk, and returns the writer of `rank`.
Result<std::unique_ptr<StepWriter>> BeginRank(Store& store, uint64_t step,
                                              const BeginOptions& options) {
  CAIRN_TRY_ASSIGN(auto writer, store.Begin(step, options));
  CAIRN_TRY(SaveChunk(*writer, step, ChunkKey("w", std::array{uint64_t{options.rank} * 5'000}),
                      CopiedPayload(RandomBytes(step, 5'000))));
  return writer;
}

Result<void> CommitRankZero(StepWriter& writer, bool has_ranks, uint64_t step) {
  if (has_ranks) {
    OtherRanks others;
    CAIRN_TRY(writer.Gather(others));
  }
  CAIRN_TRY(writer.SetStructure(std::as_bytes(std::span("s"))));
  StepSummary summary;
  if (step > 1) summary.base_step = step - 1;
  CAIRN_TRY(writer.Commit(summary));
  return {};
}

// Of 80 commits, to remove old roots, all but the first ones are checked: a
// writer that has just opened the store searches for the oldest root once.
constexpr uint64_t kCommits = 80;
constexpr uint64_t kFirstChecked = 77;

TEST_F(RoundTripsTest, CommitOfOneRank) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(remote_, OpenMode::kWrite));
  for (uint64_t step = 1; step <= kCommits; ++step) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, BeginRank(*store, step, {}));
    remote_->RestartAfterPutOf(".seg");
    if (step == kFirstChecked) remote_->SetLatency(true);
    CAIRN_ASSERT_OK(CommitRankZero(*writer, /*has_ranks=*/false, step));
    if (step >= kFirstChecked) ExpectAtMost(6, "commit after the last segment");
  }
}

TEST_F(RoundTripsTest, CommitAfterTheLastPart) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(remote_, OpenMode::kWrite));
  constexpr uint32_t kRanks = 3;
  std::vector<std::unique_ptr<Store>> others;
  for (uint32_t rank = 1; rank < kRanks; ++rank) {
    CAIRN_ASSERT_OK_AND_ASSIGN(auto other, JoinSession(remote_, *store));
    others.push_back(std::move(other));
  }
  remote_->RestartAfterPutOf("/2.part");
  for (uint64_t step = 1; step <= kCommits; ++step) {
    BeginOptions options{.world_size = kRanks, .attempt = store->NextAttempt(step)};
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, BeginRank(*store, step, options));
    if (step == kFirstChecked) remote_->SetLatency(true);
    Result<void> committed;
    {
      std::jthread rank_zero([&] { committed = CommitRankZero(*writer, true, step); });
      for (uint32_t rank = 1; rank < kRanks; ++rank) {
        options.rank = rank;
        CAIRN_ASSERT_OK_AND_ASSIGN(const auto other, BeginRank(*others[rank - 1], step, options));
        CAIRN_ASSERT_OK(other->Prepare({}));
      }
    }
    CAIRN_ASSERT_OK(committed);
    if (step >= kFirstChecked) ExpectAtMost(6, "commit after the last part");
  }
}

}  // namespace
}  // namespace cairn::kv
