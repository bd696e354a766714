// Compaction of steps that core has saved: deltas are folded; saves, loads and updates continue.

#include "kv/compact.h"

#include <gmock/gmock.h>

#include <vector>

#include "core/async_save.h"
#include "core/checkpoint_store.h"
#include "core/save/save_options.h"
#include "core/step/contents.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using kv::kPageBytes;
using ::testing::IsEmpty;
using testing::IsError;
using ::testing::Le;
using ::testing::SizeIs;

const SaveOptions kWithDeltas{.max_deltas = 4, .chunk_bytes = 4 * kPageBytes};

class CompactStepsTest : public StoreTest {
 protected:
  // Three chunks, the last one short.
  TestTensor weights_{DType::kBFloat16, {10 * kPageBytes / 2 - 1000}};
  TestTensor other_{DType::kUInt8, {3 * kPageBytes}, 7};

  StateDict State() const { return StateOf({{"other", other_.view()}, {"w", weights_.view()}}); }
  void Train() {
    for (uint64_t at = random_.Between(0, 64); at < weights_.bytes.size() / 2;
         at += random_.Between(1, 128)) {
      weights_.bytes[2 * at] ^= std::byte{1};
    }
  }
  void TrainAndSave(uint64_t step) {
    Train();
    SaveAndKeep(step, {{"other", &other_}, {"w", &weights_}}, kWithDeltas);
  }
  kv::CompactReport Compact(const kv::CompactOptions& options) {
    const auto report = store->Compact(options);
    EXPECT_TRUE(testing::IsOk(report));
    return report.value_or(kv::CompactReport());
  }
  testing::SeededRandom random_;
};

TEST_F(CompactStepsTest, WritesChunksWithoutDeltasIfNothingElseNeedsTheirBase) {
  for (uint64_t step = 1; step <= 4; ++step) TrainAndSave(step);
  DeleteKept({1, 2, 3});
  ASSERT_THAT(Chunks(4).front().deltas, SizeIs(3));
  EXPECT_EQ(Compact({.fold_all = true}).folded_chunks, 3);
  for (const ChunkInfo& chunk : Chunks(4)) EXPECT_THAT(chunk.deltas, IsEmpty());
  ExpectAllSteps();
  Reopen();
  ExpectAllSteps();
  EXPECT_EQ(Compact({.fold_all = true}).old_segments, 0);
}

TEST_F(CompactStepsTest, KeepsDeltasWhoseBaseHasOtherUsers) {
  for (uint64_t step = 1; step <= 4; ++step) TrainAndSave(step);
  DeleteKept({2});
  const kv::CompactReport report = Compact({.max_dead = 0, .fold_all = true});
  EXPECT_GT(report.old_segments, 0);
  EXPECT_EQ(report.folded_chunks, 0);
  EXPECT_THAT(Chunks(4).front().deltas, SizeIs(3));
  EXPECT_EQ(Chunks(3).front().extents, Chunks(4).front().extents);
  ExpectAllSteps();
}

TEST_F(CompactStepsTest, SavesContinueWithTheNewLocations) {
  AsyncSaver saver(store.get());
  for (uint64_t step = 1; step <= 12; ++step) {
    Train();
    CAIRN_ASSERT_OK(SaveAndWait(saver, step, State(), kWithDeltas));
    kept[step]["w"] = weights_.bytes;
    if (step % 3 == 0) DeleteKept({step - 1});
    if (step % 4 != 0) continue;
    EXPECT_GT(Compact({.max_dead = 0}).rewritten_steps, 0);
    ExpectAllSteps();
  }
  ExpectAllSteps();
  // Nothing that was replaced is used again.
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->kv().Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto segments, snapshot->Segments());
  EXPECT_THAT(segments, SizeIs(Le(4)));
}

TEST_F(CompactStepsTest, UnchangedSavesContinueWithTheNewLocations) {
  TrainAndSave(1);
  TrainAndSave(2);
  DeleteKept({1});
  Compact({.max_dead = 0});
  const SaveReport report = SaveAndKeep(3, {{"other", &other_}, {"w", &weights_}}, kWithDeltas);
  EXPECT_EQ(report.written_bytes, 0);
  EXPECT_EQ(Chunks(3).front().extents, Chunks(2).front().extents);
  ExpectAllSteps();
}

TEST_F(CompactStepsTest, UpdatesContinue) {
  TrainAndSave(1);
  TestTensor model = weights_;
  TrainAndSave(2);
  const kv::StepInfo first = Step(1);
  Compact({.max_dead = 0});
  const std::vector<LoadRequest> requests = {WholeRequest("w", model)};
  CAIRN_ASSERT_OK(store->Update(first, Step(2), requests));
  EXPECT_TRUE(model.bytes == kept[2]["w"]);
}

TEST_F(CompactStepsTest, TheStoreIsNotClosedMeanwhile) {
  for (uint64_t step = 1; step <= 3; ++step) TrainAndSave(step);
  Result<void> closed;
  Compact({.max_dead = 0, .progress = [&](uint64_t, uint64_t) {
             closed = store->Close();
             return true;
           }});
  EXPECT_THAT(closed, IsError(ErrorCode::kFailedPrecondition, "compaction"));
  ExpectAllSteps();
}

}  // namespace
}  // namespace cairn::core
