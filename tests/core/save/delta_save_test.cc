// Saving chunks of which scattered elements have changed: only these elements are written, and a
// chunk with deltas is read, checked, compared, updated and deleted like one without.

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>

#include "core/inspect/compare.h"
#include "core/load/load_options.h"
#include "core/save/save_options.h"
#include "core/step/contents.h"
#include "kv/base/step_info.h"
#include "kv/copy_steps.h"
#include "kv/store.h"
#include "tests/core/tensor/strided_fixture.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using kv::kPageBytes;
using ::testing::IsEmpty;
using testing::IsError;
using ::testing::SizeIs;

constexpr uint64_t kRows = 21, kColumns = 4 * kPageBytes / 2 / 8;  // 8 rows are 4 pages
const SaveOptions kWithDeltas{.max_deltas = 4};

class DeltaSaveTest : public StoreTest {
 protected:
  // One chunk of 10 pages and a short one.
  TestTensor tensor_{DType::kBFloat16, {kRows, kColumns}};

  TestTensor copy_ = tensor_;

  static StateDict State(const TestTensor& tensor) {
    StateDict state;
    state.root().Tensor("w", tensor.view());
    return state;
  }

  // Two tensors with equal bytes.
  StateDict UntiedState() {
    copy_ = tensor_;
    StateDict state;
    state.root().Tensor("a", tensor_.view());
    state.root().Tensor("b", copy_.view());
    return state;
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
    const SaveReport report = Save(step, State(tensor_), options);
    states_[step] = tensor_.bytes;
    return report;
  }

  // Step 1 is complete; steps 2 to `last` have one delta more each.
  void SaveSteps(uint64_t last) {
    for (uint64_t step = 1; step <= last; ++step) TrainAndSave(step);
  }

  void ExpectAllSteps() {
    for (const auto& [step, bytes] : states_) EXPECT_TRUE(LoadBytes(step, "w") == bytes) << step;
    EXPECT_THAT(VerifyAll(), IsEmpty());
  }

  testing::SeededRandom random_;
  std::map<uint64_t, std::vector<std::byte>> states_;
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
  const SaveReport report = Save(4, State(tensor_), kWithDeltas);
  states_[4] = tensor_.bytes;
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
  const SaveReport report = Save(3, State(tensor_));
  states_[3] = tensor_.bytes;
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
  const SaveReport report = Save(2, State(tensor_), kWithDeltas);
  states_[2] = tensor_.bytes;
  EXPECT_LT(report.written_bytes, 512u);
  EXPECT_THAT(OnlyChunk(2).deltas, SizeIs(1));
  ExpectAllSteps();
}

TEST_F(DeltaSaveTest, ADeltaFollowsExtentsOfSeveralSteps) {
  TrainAndSave(1);
  for (uint64_t i = 0; i < kPageBytes; ++i) tensor_.bytes[3 * kPageBytes + i] ^= std::byte{0x5a};
  Save(2, State(tensor_), kWithDeltas);
  states_[2] = tensor_.bytes;
  EXPECT_EQ(OnlyChunk(2).extents.size(), 3u);
  TrainAndSave(3);
  EXPECT_THAT(OnlyChunk(3).deltas, SizeIs(1));
  EXPECT_EQ(OnlyChunk(3).extents, OnlyChunk(2).extents);
  ExpectAllSteps();
}

TEST_F(DeltaSaveTest, BoxesAreRead) {
  SaveSteps(4);
  for (const Box& box : {Box{{0, 0}, {kRows, 1}}, Box{{5, 100}, {9, 3000}}, Box{{20, 0}, {1, 7}},
                         Box{{3, 0}, {4, kColumns}}}) {
    TestTensor part(DType::kBFloat16, box.sizes, 99);
    const LoadRequest request{.fqn = "w", .box = box, .target = part.target()};
    CAIRN_ASSERT_OK(store->Load(Step(4), {&request, 1}));
    for (uint64_t row = 0; row < box.sizes[0]; ++row) {
      const uint64_t begin = 2 * ((box.offsets[0] + row) * kColumns + box.offsets[1]);
      const uint64_t count = 2 * box.sizes[1];
      EXPECT_TRUE(std::ranges::equal(std::span(states_[4]).subspan(begin, count),
                                     std::span(part.bytes).subspan(row * count, count)))
          << row;
    }
  }
}

TEST_F(DeltaSaveTest, APartReadsOnlyItsPagesAndTheDeltas) {
  SaveSteps(4);
  TestTensor part(DType::kBFloat16, {1, 8}, 99);
  const LoadRequest request{.fqn = "w", .box = {{20, 0}, {1, 8}}, .target = part.target()};
  CAIRN_ASSERT_OK_AND_ASSIGN(const LoadReport report, store->Load(Step(4), {&request, 1}));
  uint64_t delta_bytes = 0;
  for (const kv::Extent& delta : OnlyChunk(4).deltas) delta_bytes += delta.length_bytes;
  EXPECT_LE(report.bytes_read, 2 * kPageBytes + delta_bytes + 4096 * 8);
}

TEST_F(DeltaSaveTest, ItIsNotMapped) {
  SaveSteps(2);
  const std::string fqns[] = {"w"};
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto mapped, store->Map(Step(2), fqns));
  EXPECT_FALSE(mapped[0].has_value());
}

TEST_F(DeltaSaveTest, StepsAreCompared) {
  SaveSteps(3);
  Save(4, State(tensor_), {.incremental = false});
  CAIRN_ASSERT_OK_AND_ASSIGN(const Diff changed, CompareSteps(store->kv(), 1, 3));
  EXPECT_THAT(changed.changes, SizeIs(1));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Diff same, CompareSteps(store->kv(), 3, 4));
  EXPECT_THAT(same.changes, IsEmpty());
}

TEST_F(DeltaSaveTest, AnUpdateReadsOnlyTheLaterDeltas) {
  SaveSteps(4);
  TestTensor model = tensor_;
  model.bytes = states_[2];
  const LoadRequest request = WholeRequest("w", model);
  CAIRN_ASSERT_OK_AND_ASSIGN(const UpdateReport report,
                             store->Update(Step(2), Step(4), {&request, 1}));
  EXPECT_TRUE(model.bytes == states_[4]);
  const ChunkInfo chunk = OnlyChunk(4);
  // Reads past the page cache are rounded to 4 KiB.
  EXPECT_LE(report.bytes_read,
            chunk.deltas[1].length_bytes + chunk.deltas[2].length_bytes + 4 * 4096);
  // Back, and over the end of a chain, the chunk is read completely.
  CAIRN_ASSERT_OK(store->Update(Step(4), Step(2), {&request, 1}));
  EXPECT_TRUE(model.bytes == states_[2]);
  for (uint64_t step = 5; step <= 8; ++step) TrainAndSave(step);
  CAIRN_ASSERT_OK(store->Update(Step(2), Step(8), {&request, 1}));
  EXPECT_TRUE(model.bytes == states_[8]);
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

TEST_F(DeltaSaveTest, ABaseLivesAsLongAsItsDeltas) {
  SaveSteps(4);
  const uint64_t first[] = {1, 2, 3};
  CAIRN_ASSERT_OK(store->Delete(first));
  for (const uint64_t step : first) states_.erase(step);
  Reopen();
  ExpectAllSteps();
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->kv().Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto segments, snapshot->Segments());
  EXPECT_THAT(segments, SizeIs(4));
}

TEST_F(DeltaSaveTest, StepsAreRecoveredFromTheirTables) {
  SaveSteps(4);
  store.reset();
  const std::string path = directory.path() + "/store";
  std::filesystem::remove_all(path + "/roots");
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto report, kv::Store::Rebuild(path));
  EXPECT_THAT(report.lost, IsEmpty());
  Reopen();
  ExpectAllSteps();
}

TEST_F(DeltaSaveTest, StepsAreRecoveredFromFooters) {
  SaveSteps(4);
  store.reset();
  const std::string path = directory.path() + "/store";
  std::filesystem::remove_all(path + "/roots");
  std::filesystem::remove_all(path + "/tables");
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto report, kv::Store::Rebuild(path));
  EXPECT_THAT(report.lost, IsEmpty());
  Reopen();
  ExpectAllSteps();
}

TEST_F(DeltaSaveTest, StepsAreCopied) {
  SaveSteps(4);
  const std::string copy = directory.path() + "/copy";
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto target, kv::Store::Open(copy, kv::OpenMode::kWrite));
    CAIRN_ASSERT_OK(kv::CopySteps(store->kv(), *target, {.steps = {1, 2, 3, 4}}));
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(store, CheckpointStore::Open(copy, kv::OpenMode::kRead));
  ExpectAllSteps();
}

TEST_F(DeltaSaveTest, DamageIsFoundAndNamed) {
  SaveSteps(3);
  const ChunkInfo chunk = OnlyChunk(3);
  for (const kv::Extent& extent : {chunk.extents.front(), chunk.deltas[0], chunk.deltas[1]}) {
    const std::string file = FileOf(extent);
    // Of a delta, a byte of the header: one of a compressed stream may have no effect at all, and
    // then the bytes of the chunk are right.
    const uint64_t at = extent.offset_bytes + 8;
    FlipByte(file, at);
    TestTensor target = tensor_;
    const LoadRequest request = WholeRequest("w", target);
    const auto loaded = store->Load(Step(3), {&request, 1});
    ASSERT_THAT(loaded, IsError(ErrorCode::kDataLoss, ""));
    EXPECT_EQ(loaded.error().key, "w");
    EXPECT_EQ(loaded.error().file, file);
    EXPECT_EQ(loaded.error().offset_bytes, extent.offset_bytes);
    const auto damage = VerifyAll(3);
    ASSERT_THAT(damage, SizeIs(1)) << damage[0].ToString();
    EXPECT_EQ(damage[0].file, file) << damage[0].ToString();
    // The next save does not rely on the damaged base.
    store.reset();
    Reopen();
    Train(tensor_);
    const uint64_t next = 4 + states_.size();
    EXPECT_EQ(Save(next, State(tensor_), {.base_step = 3, .max_deltas = 4}).written_bytes,
              tensor_.bytes.size());
    EXPECT_TRUE(LoadBytes(next, "w") == tensor_.bytes);
    states_[next] = tensor_.bytes;
    FlipByte(file, at);
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

TEST_F(DeltaSaveTest, StridedTensorsHaveDeltas) {
  const uint64_t side = 512;
  TestTensor square(DType::kBFloat16, {side, side});
  const TensorView transposed{DType::kBFloat16, {side, side}, {1, side}, square.bytes.data()};
  StateDict state;
  state.root().Tensor("w", transposed);
  Save(1, state, kWithDeltas);
  Train(square);
  EXPECT_LT(Save(2, state, kWithDeltas).written_bytes, square.bytes.size() / 8);
  EXPECT_TRUE(LoadBytes(2, "w") == NaiveRowMajor(transposed));
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

TEST_F(DeltaSaveTest, TooManyDeltasAreRefused) {
  EXPECT_THAT(store->Save(1, State(tensor_), {.max_deltas = kv::kMaxDeltas + 1}),
              IsError(ErrorCode::kInvalidArgument, "64"));
}

}  // namespace
}  // namespace cairn::core
