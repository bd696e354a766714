// The order of a plan's chunks, and what is known about each of them before it is written.

#include "core/save/internal/chunk_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/save/internal/save_planner.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core::internal {
namespace {

using kv::SegmentAlignment;
using ::testing::ElementsAre;
using ::testing::SizeIs;

SavePlan PlanOf(const StateDict& state, uint64_t chunk_bytes) {
  auto plan = PlanSave(state, {.chunk_bytes = chunk_bytes});
  EXPECT_TRUE(testing::IsOk(plan));
  return plan ? *std::move(plan) : SavePlan();
}

std::vector<PlannedChunk> AllChunks(const SavePlan& plan) {
  std::vector<PlannedChunk> chunks;
  for (ChunkSource source(plan); !source.done();) chunks.push_back(source.Take());
  return chunks;
}

TEST(ChunkSourceTest, APlanWithoutShardsHasNoChunks) {
  const SavePlan plan;
  EXPECT_TRUE(ChunkSource(plan).done());
}

TEST(ChunkSourceTest, PeekReturnsTheChunkThatTakeReturns) {
  const TestTensor tensor(DType::kUInt8, {4, 10});
  StateDict state;
  state.root().Tensor("w", tensor.view());
  const SavePlan plan = PlanOf(state, 10);
  ChunkSource source(plan);
  const std::string first = source.Peek().key;
  EXPECT_EQ(source.Peek().key, first);
  EXPECT_EQ(source.Take().key, first);
  EXPECT_GT(source.Peek().key, first);
}

TEST(ChunkSourceTest, ChunksOfSeveralShardsAlternateInKeyOrder) {
  // The left and the right half of a matrix: in key order, each row is a chunk of the left half and
  // a chunk of the right half.
  const TestTensor memory(DType::kUInt8, {16});
  const Sharding halves{
      .global_shape = {4, 4},
      .mesh = nullptr,
      .placements = {},
      .parts = {
          {.box = {{0, 0}, {4, 2}},
           .view = {.dtype = DType::kUInt8, .shape = {4, 2}, .data = memory.bytes.data()}},
          {.box = {{0, 2}, {4, 2}},
           .view = {.dtype = DType::kUInt8, .shape = {4, 2}, .data = memory.bytes.data() + 8}}}};
  StateDict state;
  state.root().Sharded("b", {.dtype = DType::kUInt8, .shape = {}}, halves);
  state.root().Tensor("a", memory.view());
  const SavePlan plan = PlanOf(state, 2);

  const std::vector<PlannedChunk> chunks = AllChunks(plan);

  EXPECT_TRUE(std::ranges::is_sorted(chunks, std::ranges::less_equal{}, &PlannedChunk::key));
  std::vector<size_t> shards_of_b;
  for (const PlannedChunk& chunk : chunks) {
    if (plan.tensors[chunk.tensor].fqn == "b") shards_of_b.push_back(chunk.shard);
  }
  EXPECT_THAT(shards_of_b, ElementsAre(1, 2, 1, 2, 1, 2, 1, 2));
}

TEST(ChunkSourceTest, TheFirstChunkOfAShardIsAlignedByTheLengthOfTheShard) {
  const TestTensor large(DType::kUInt8, {4, kLargeShardBytes / 4});
  const TestTensor small(DType::kUInt8, {2, kLargeShardBytes / 4});
  StateDict state;
  state.root().Tensor("large", large.view());
  state.root().Tensor("small", small.view());
  const SavePlan plan = PlanOf(state, kLargeShardBytes / 4);

  std::vector<SegmentAlignment> alignments;
  for (const PlannedChunk& chunk : AllChunks(plan)) alignments.push_back(chunk.alignment);

  EXPECT_THAT(alignments,
              ElementsAre(SegmentAlignment::k4096, SegmentAlignment::kNone, SegmentAlignment::kNone,
                          SegmentAlignment::kNone, SegmentAlignment::k64, SegmentAlignment::kNone));
}

TEST(ChunkSourceTest, ChunksAreConsecutiveRangesOfTheSource) {
  const TestTensor tensor(DType::kUInt8, {5, 10});
  StateDict state;
  state.root().Tensor("w", tensor.view());
  SavePlan plan = PlanOf(state, 20);
  // As after staging: only the chunks from the second on are in memory.
  plan.shards[0].first_chunk = 1;
  plan.shards[0].skipped_bytes = plan.shards[0].begin_bytes();

  const std::vector<PlannedChunk> chunks = AllChunks(plan);

  ASSERT_THAT(chunks, SizeIs(2));
  EXPECT_EQ(chunks[0].begin_bytes, 0u);
  EXPECT_EQ(chunks[0].length_bytes, 20u);
  EXPECT_EQ(chunks[0].alignment, SegmentAlignment::k64);
  EXPECT_EQ(chunks[1].begin_bytes, 20u);
  EXPECT_EQ(chunks[1].length_bytes, 10u);
  EXPECT_EQ(chunks[1].sizes, (Shape{1, 10}));
}

TEST(ChunkSourceTest, AnUnchangedChunkHasItsDigestAndNoBytes) {
  const TestTensor tensor(DType::kUInt8, {2, 10});
  StateDict state;
  state.root().Tensor("w", tensor.view());
  SavePlan plan = PlanOf(state, 10);
  const kv::Digest digest{.lo = 1, .hi = 2};
  plan.shards[0].unchanged = {std::nullopt, digest};

  const std::vector<PlannedChunk> chunks = AllChunks(plan);

  ASSERT_THAT(chunks, SizeIs(2));
  EXPECT_TRUE(chunks[0].has_bytes);
  EXPECT_FALSE(chunks[0].is_digested());
  EXPECT_FALSE(chunks[1].has_bytes);
  EXPECT_TRUE(chunks[1].is_digested());
  EXPECT_EQ(chunks[1].digest, digest);
}

TEST(ChunkSourceTest, AChunkThatADeviceDigestedHasTheDigestOfItsPages) {
  const TestTensor tensor(DType::kUInt8, {10});
  StateDict state;
  state.root().Tensor("w", tensor.view());
  SavePlan plan = PlanOf(state, 10);
  plan.shards[0].pages = {{.page_digests = {7}, .changed = {true}}};

  const std::vector<PlannedChunk> chunks = AllChunks(plan);

  ASSERT_THAT(chunks, SizeIs(1));
  EXPECT_THAT(chunks[0].page_digests, ElementsAre(7));
  EXPECT_EQ(chunks[0].digest, kv::RootDigest(chunks[0].page_digests, 10));
  ASSERT_NE(chunks[0].changed_pages, nullptr);
  EXPECT_THAT(*chunks[0].changed_pages, ElementsAre(true));
}

}  // namespace
}  // namespace cairn::core::internal
