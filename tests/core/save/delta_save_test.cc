// Saving chunks of which scattered elements have changed: only these elements are written.
// stored_forms_test.cc has what applies to every form of a chunk.

#include <gmock/gmock.h>

#include <algorithm>

#include "core/save/save_options.h"
#include "core/step/contents.h"
#include "kv/base/step_info.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using kv::kPageBytes;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kRows = 21, kColumns = 4 * kPageBytes / 2 / 8;  // 8 rows are 4 pages
const SaveOptions kWithDeltas{.max_deltas = 4};

class DeltaSaveTest : public StoreTest {
 protected:
  // One chunk of 10 pages and a short one.
  TestTensor tensor_{DType::kBFloat16, {kRows, kColumns}};

  TestTensor copy_ = tensor_;

  static StateDict State(const TestTensor& tensor) { return StateOf({{"w", tensor.view()}}); }

  // Two tensors with equal bytes.
  StateDict UntiedState() {
    copy_ = tensor_;
    return StateOf({{"a", tensor_.view()}, {"b", copy_.view()}});
  }

  // Changes about one of `distance` elements of a tensor of 2-byte elements, at random.
  void Train(TestTensor& tensor, uint64_t distance = 64) {
    for (uint64_t at = random_.Between(0, distance); at < tensor.bytes.size() / 2;
         at += random_.Between(1, 2 * distance)) {
      tensor.bytes[2 * at] ^= std::byte{1};
    }
  }

  SaveReport TrainAndSave(uint64_t step, const SaveOptions& options = kWithDeltas) {
    Train(tensor_);
    return SaveAndKeep(step, {{"w", &tensor_}}, options);
  }

  // Step 1 is complete; steps 2 to `last` have one delta more each.
  void SaveSteps(uint64_t last) {
    for (uint64_t step = 1; step <= last; ++step) TrainAndSave(step);
  }

  testing::SeededRandom random_;
};

TEST_F(DeltaSaveTest, ScatteredChangesAreWrittenAsADelta) {
  EXPECT_EQ(TrainAndSave(1).written_bytes, tensor_.bytes.size());
  const SaveReport second = TrainAndSave(2);
  EXPECT_LT(second.written_bytes, tensor_.bytes.size() / 8);
  EXPECT_EQ(second.chunks_reused, 0u);
  const ChunkInfo chunk = OnlyChunk(2);
  EXPECT_EQ(chunk.extents, OnlyChunk(1).extents);
  EXPECT_THAT(chunk.deltas, SizeIs(1));
  EXPECT_EQ(chunk.since_step, 2u);
  EXPECT_EQ(chunk.digest, kv::PayloadDigest(tensor_.bytes));
  ExpectAllSteps();
}

TEST_F(DeltaSaveTest, WithoutTheOptionEverythingIsWritten) {
  TrainAndSave(1);
  EXPECT_EQ(TrainAndSave(2, {}).written_bytes, tensor_.bytes.size());
  EXPECT_THAT(OnlyChunk(2).deltas, IsEmpty());
}

TEST_F(DeltaSaveTest, AChainEndsWithACompleteChunk) {
  SaveSteps(12);
  for (uint64_t step = 1; step <= 12; ++step) {
    EXPECT_THAT(OnlyChunk(step).deltas, SizeIs((step - 1) % 5)) << step;
  }
  ExpectAllSteps();
  Reopen();
  ExpectAllSteps();
}

TEST_F(DeltaSaveTest, AnUnchangedChunkKeepsItsDeltas) {
  SaveSteps(3);
  const SaveReport report = SaveAndKeep(4, {{"w", &tensor_}}, kWithDeltas);
  EXPECT_EQ(report.written_bytes, 0u);
  EXPECT_EQ(report.chunks_reused, 1u);
  EXPECT_EQ(OnlyChunk(4).deltas, OnlyChunk(3).deltas);
  // The option is about what is written, not about what is referenced.
  Reopen();
  EXPECT_EQ(Save(5, State(tensor_)).written_bytes, 0u);
  EXPECT_EQ(OnlyChunk(5).deltas, OnlyChunk(3).deltas);
  ExpectAllSteps();
}

TEST_F(DeltaSaveTest, AfterDeltasNoPageOfTheBaseIsReferenced) {
  SaveSteps(2);
  tensor_.bytes[100] ^= std::byte{1};
  const SaveReport report = SaveAndKeep(3, {{"w", &tensor_}});
  EXPECT_EQ(report.written_bytes, tensor_.bytes.size());
  EXPECT_THAT(OnlyChunk(3).deltas, IsEmpty());
  ExpectAllSteps();
}

TEST_F(DeltaSaveTest, ChangesOfAllElementsAreWrittenAsTheyAre) {
  TrainAndSave(1);
  tensor_ = TestTensor(DType::kBFloat16, {kRows, kColumns}, 9);
  const SaveReport report = TrainAndSave(2);
  EXPECT_EQ(report.written_bytes, tensor_.bytes.size());
  EXPECT_THAT(OnlyChunk(2).deltas, IsEmpty());
  ExpectAllSteps();
}

TEST_F(DeltaSaveTest, FewChangedElementsOfOnePageAreADelta) {
  TrainAndSave(1);
  tensor_.bytes[5 * kPageBytes] ^= std::byte{1};
  const SaveReport report = SaveAndKeep(2, {{"w", &tensor_}}, kWithDeltas);
  EXPECT_LT(report.written_bytes, 512u);
  EXPECT_THAT(OnlyChunk(2).deltas, SizeIs(1));
  ExpectAllSteps();
}

TEST_F(DeltaSaveTest, ADeltaFollowsExtentsOfSeveralSteps) {
  TrainAndSave(1);
  for (uint64_t i = 0; i < kPageBytes; ++i) tensor_.bytes[3 * kPageBytes + i] ^= std::byte{0x5a};
  SaveAndKeep(2, {{"w", &tensor_}}, kWithDeltas);
  EXPECT_EQ(OnlyChunk(2).extents.size(), 3u);
  TrainAndSave(3);
  EXPECT_THAT(OnlyChunk(3).deltas, SizeIs(1));
  EXPECT_EQ(OnlyChunk(3).extents, OnlyChunk(2).extents);
  ExpectAllSteps();
}

TEST_F(DeltaSaveTest, APartReadsOnlyItsPagesAndTheDeltas) {
  SaveSteps(4);
  TestTensor part(DType::kBFloat16, {1, 8}, 99);
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const LoadReport report,
      Load(4, {{.fqn = "w", .box = {{20, 0}, {1, 8}}, .target = part.target()}}));
  uint64_t delta_bytes = 0;
  for (const kv::Extent& delta : OnlyChunk(4).deltas) delta_bytes += delta.length_bytes;
  EXPECT_LE(report.bytes_read, 2 * kPageBytes + delta_bytes + 4096 * 8);
}

TEST_F(DeltaSaveTest, AnUpdateReadsOnlyTheLaterDeltas) {
  SaveSteps(4);
  TestTensor model = tensor_;
  model.bytes = kept[2]["w"];
  const LoadRequest request = WholeRequest("w", model);
  CAIRN_ASSERT_OK_AND_ASSIGN(const UpdateReport report,
                             store->Update(Step(2), Step(4), {&request, 1}));
  EXPECT_TRUE(model.bytes == kept[4]["w"]);
  const ChunkInfo chunk = OnlyChunk(4);
  // Reads past the page cache are rounded to 4 KiB.
  EXPECT_LE(report.bytes_read,
            chunk.deltas[1].length_bytes + chunk.deltas[2].length_bytes + 4 * 4096);
  // Over the end of a chain, the chunk is read completely.
  for (uint64_t step = 5; step <= 8; ++step) TrainAndSave(step);
  CAIRN_ASSERT_OK(store->Update(Step(4), Step(8), std::array{WholeRequest("w", model)}));
  EXPECT_TRUE(model.bytes == tensor_.bytes);
}

TEST_F(DeltaSaveTest, AnUpdateChangesMemoryThatTwoTensorsShareOnce) {
  Save(1, UntiedState(), kWithDeltas);
  TestTensor model = tensor_;
  Train(tensor_);
  Save(2, UntiedState(), kWithDeltas);
  const std::vector<LoadRequest> requests = {WholeRequest("a", model), WholeRequest("b", model)};
  CAIRN_ASSERT_OK(store->Update(Step(1), Step(2), requests));
  EXPECT_TRUE(model.bytes == tensor_.bytes);
}

TEST_F(DeltaSaveTest, ALoadIntoMemoryThatTwoTensorsShareAppliesDeltasOnce) {
  for (uint64_t step = 1; step <= 3; ++step) {
    Train(tensor_);
    Save(step, UntiedState(), kWithDeltas);
  }
  TestTensor model(tensor_.dtype, tensor_.shape, 7);
  const std::vector<LoadRequest> requests = {WholeRequest("a", model), WholeRequest("b", model)};
  for (int round = 0; round < 20; ++round) {
    std::ranges::fill(model.bytes, std::byte{0});
    CAIRN_ASSERT_OK(store->Load(Step(3), requests));
    ASSERT_TRUE(model.bytes == tensor_.bytes);
  }
}

TEST_F(DeltaSaveTest, ASaveDoesNotRelyOnADamagedBase) {
  SaveSteps(3);
  const ChunkInfo chunk = OnlyChunk(3);
  for (const kv::Extent& extent : {chunk.extents.front(), chunk.deltas[0], chunk.deltas[1]}) {
    const std::string file = FileOf(extent);
    FlipByte(file, extent.offset_bytes + 8);
    Reopen();
    Train(tensor_);
    const uint64_t next = 4 + kept.size();
    const SaveOptions options{.base_step = 3, .max_deltas = 4};
    EXPECT_EQ(SaveAndKeep(next, {{"w", &tensor_}}, options).written_bytes, tensor_.bytes.size());
    EXPECT_TRUE(LoadBytes(next, "w") == tensor_.bytes);
    FlipByte(file, extent.offset_bytes + 8);
  }
  ExpectAllSteps();
}

TEST_F(DeltaSaveTest, WhatStepsShareIsVerifiedOnce) {
  SaveSteps(4);
  const ChunkInfo chunk = OnlyChunk(4);
  uint64_t stored = chunk.extents.length_bytes();
  for (const kv::Extent& delta : chunk.deltas) stored += delta.length_bytes;
  CAIRN_ASSERT_OK_AND_ASSIGN(const uint64_t bytes, store->Verify({}, [](const kv::Damage& found) {
    ADD_FAILURE() << found.error.ToString();
  }));
  // The complete chunk of step 1, and the chain of steps 2 to 4.
  EXPECT_GE(bytes, chunk.extents.length_bytes() + stored);
  EXPECT_LE(bytes, chunk.extents.length_bytes() + stored + 4 * 4096);
}

TEST_F(DeltaSaveTest, ChunksAfterADeltaAreAligned) {
  // The first chunk gets a delta, the second is written completely.
  constexpr uint64_t kChunkBytes = 8 * kPageBytes;
  TestTensor large(DType::kBFloat16, {2 * kChunkBytes / 2});
  const SaveOptions options{.max_deltas = 4, .chunk_bytes = kChunkBytes};
  Save(1, State(large), options);
  large.bytes[0] ^= std::byte{1};
  for (uint64_t i = kChunkBytes; i < 2 * kChunkBytes; ++i) large.bytes[i] ^= std::byte{0x5a};
  Save(2, State(large), options);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto chunks, store->Chunks(Step(2), "w"));
  ASSERT_THAT(chunks, SizeIs(2));
  EXPECT_THAT(chunks[0].deltas, SizeIs(1));
  EXPECT_THAT(chunks[1].deltas, IsEmpty());
  EXPECT_EQ(chunks[1].extents.front().offset_bytes % 4096, 0u);
  EXPECT_TRUE(LoadBytes(2, "w") == large.bytes);
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

// Reads of the base must not wait for the blocks of this save's own writes.
TEST_F(DeltaSaveTest, TheBaseIsReadWhileAllBlocksAreBeingWritten) {
  store.reset();
  CAIRN_ASSERT_OK_AND_ASSIGN(
      store, CheckpointStore::Open(
                 directory.path() + "/store", kv::OpenMode::kWrite,
                 {.io = kv::IoOptions{.block_bytes = uint64_t{kPageBytes}, .queue_depth = 1}}));
  // More chunks than are planned at a time, half of which are written completely.
  constexpr uint64_t kChunkBytes = 4096;
  TestTensor large(DType::kBFloat16, {6000 * kChunkBytes / 2});
  SaveOptions options{.max_deltas = 4, .chunk_bytes = kChunkBytes};
  Save(1, State(large), options);
  for (uint64_t at = 0; at < large.bytes.size(); ++at) {
    const bool is_sparse = at / kChunkBytes % 2 == 0;
    if (!is_sparse || at % 1000 == 0) large.bytes[at] ^= std::byte{1};
  }
  for (uint64_t step = 2; step <= 3; ++step) {
    options.share_equal = step == 3;
    Save(step, State(large), options);
    EXPECT_TRUE(LoadBytes(step, "w") == large.bytes);
    for (uint64_t at = 0; at < large.bytes.size(); at += 2) large.bytes[at] ^= std::byte{2};
  }
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

}  // namespace
}  // namespace cairn::core
