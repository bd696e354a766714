// Deltas that are found while a state is staged, in comparison with what was staged before.

#include <gmock/gmock.h>

#include <atomic>
#include <future>
#include <map>
#include <thread>

#include "core/async_save.h"
#include "core/save/internal/save.h"
#include "core/save/internal/save_planner.h"
#include "core/save/internal/staging.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using internal::PlannedShard;
using internal::SavedChunks;
using internal::SavePlan;
using internal::StagingArea;
using kv::kPageBytes;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kChunkBytes = 4 * kPageBytes;
const SaveOptions kOptions{.max_deltas = 3, .chunk_bytes = kChunkBytes};

// Changes about one of 50 bytes of a range.
void Change(std::span<std::byte> bytes, testing::SeededRandom& random) {
  for (uint64_t at = random.Between(0, 99); at < bytes.size(); at += random.Between(1, 99)) {
    bytes[at] ^= std::byte{1};
  }
}

class StagedDeltaTest : public StoreTest {
 protected:
  TestTensor tensor_{DType::kUInt8, {10 * kChunkBytes}};
  testing::SeededRandom random_;
  kv::WorkerPool workers_{2};

  StateDict State() const {
    StateDict state;
    state.root().Tensor("w", tensor_.view());
    return state;
  }
  SavePlan Stage(StagingArea& area, const StateDict& state, const SavedChunks* base) {
    auto plan = internal::PlanSave(state, kOptions);
    EXPECT_TRUE(testing::IsOk(plan));
    EXPECT_TRUE(testing::IsOk(area.Stage(*plan, base, kOptions.max_deltas)));
    return *std::move(plan);
  }
  SavedChunks Run(uint64_t step, SavePlan plan) {
    SavedChunks saved;
    EXPECT_TRUE(testing::IsOk(internal::RunSave(plan, {.store = store->kv(),
                                                       .attempt = {.step = step},
                                                       .self = {},
                                                       .options = kOptions,
                                                       .pool = workers_,
                                                       .saved = &saved})));
    return saved;
  }
  static size_t Deltas(const SavePlan& plan) {
    size_t count = 0;
    for (const PlannedShard& shard : plan.shards) {
      for (const PlannedShard::ChunkPages& pages : shard.pages) count += !pages.delta.empty();
    }
    return count;
  }
};

TEST_F(StagedDeltaTest, ChunksThatChangedAreComparedWithTheStagedOnes) {
  StagingArea area;
  const SavedChunks first = Run(1, Stage(area, State(), nullptr));
  Change(tensor_.bytes, random_);
  SavePlan plan = Stage(area, State(), &first);
  EXPECT_TRUE(plan.has_deltas);
  EXPECT_EQ(Deltas(plan), 10u);
  const SavedChunks second = Run(2, std::move(plan));
  EXPECT_TRUE(LoadBytes(2, "w") == tensor_.bytes);
  for (const SavedChunks::Chunk& chunk : second.shards[0].chunks) EXPECT_EQ(chunk.deltas, 1u);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto chunks, store->Chunks(Step(2), "w"));
  for (const ChunkInfo& chunk : chunks) EXPECT_THAT(chunk.deltas, SizeIs(1));
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

TEST_F(StagedDeltaTest, AfterASaveThatFailedThereIsNoDelta) {
  StagingArea area;
  const SavedChunks first = Run(1, Stage(area, State(), nullptr));
  Change(tensor_.bytes, random_);
  Stage(area, State(), &first);  // is never written
  Change(tensor_.bytes, random_);
  SavePlan plan = Stage(area, State(), &first);
  EXPECT_EQ(Deltas(plan), 0u);
  Run(2, std::move(plan));
  EXPECT_TRUE(LoadBytes(2, "w") == tensor_.bytes);
}

TEST_F(StagedDeltaTest, InAnotherLayoutNothingIsCompared) {
  StagingArea area;
  StateDict more;
  const TestTensor other(DType::kUInt8, {5000});
  more.root().Tensor("a", other.view());
  more.root().Tensor("w", tensor_.view());
  const SavedChunks first = Run(1, Stage(area, more, nullptr));
  Change(tensor_.bytes, random_);
  SavePlan plan = Stage(area, State(), &first);
  EXPECT_FALSE(plan.has_deltas);
  Run(2, std::move(plan));
  EXPECT_TRUE(LoadBytes(2, "w") == tensor_.bytes);
}

// The base of an asynchronous save is overwritten between its staging and its writing.
class ReplacedBaseTest : public StagedDeltaTest {
 protected:
  void SaveWhileTheBaseIsReplacedBy(const TestTensor& other) {
    StateDict replacement;
    replacement.root().Tensor("w", other.view());
    AsyncSaver saver(store.get());
    CAIRN_ASSERT_OK_AND_ASSIGN(const SaveHandle first, saver.Save(1, State(), kOptions));
    CAIRN_ASSERT_OK(first.Wait());
    std::promise<void> entered, released;
    std::atomic<bool> is_first = true;
    const SaveOptions overwrite{
        .overwrite = true, .chunk_bytes = kChunkBytes, .progress = [&](uint64_t, uint64_t) {
          if (is_first.exchange(false)) {
            entered.set_value();
            released.get_future().wait();
          }
          return true;
        }};
    std::thread replacing([&] { Save(1, replacement, overwrite); });
    entered.get_future().wait();
    Change(tensor_.bytes, random_);
    const auto second = saver.Save(2, State(), kOptions);
    released.set_value();
    replacing.join();
    CAIRN_ASSERT_OK(second);
    CAIRN_ASSERT_OK(second->Wait());
    EXPECT_TRUE(LoadBytes(2, "w") == tensor_.bytes);
    EXPECT_THAT(VerifyAll(), IsEmpty());
  }
};

TEST_F(ReplacedBaseTest, ByOtherBytes) {
  SaveWhileTheBaseIsReplacedBy(TestTensor(DType::kUInt8, {10 * kChunkBytes}, 77));
}

TEST_F(ReplacedBaseTest, ByAnotherShape) {
  SaveWhileTheBaseIsReplacedBy(TestTensor(DType::kUInt8, {kChunkBytes / 2}, 77));
}

TEST_F(StagedDeltaTest, AsyncSavesKeepEveryStepBitForBit) {
  std::map<uint64_t, std::vector<std::byte>> states;
  AsyncSaver saver(store.get());
  for (uint64_t step = 0; step < 30; ++step) {
    const std::span<std::byte> bytes(tensor_.bytes);
    const uint64_t begin = random_.Between(0, bytes.size() - 1);
    const uint64_t length = random_.Between(0, bytes.size() - begin);
    if (random_.Chance(0.2)) {
      for (std::byte& b : bytes.subspan(begin, length)) b ^= std::byte{0x5a};
    } else if (random_.Chance(0.9)) {
      Change(bytes.subspan(begin, length), random_);
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(const SaveHandle handle, saver.Save(step, State(), kOptions));
    CAIRN_ASSERT_OK(handle.Wait());
    states[step] = tensor_.bytes;
    if (random_.Chance(0.1)) Save(1000 + step, State());  // a step of another saver
    if (random_.Chance(0.2)) {
      const uint64_t deleted = random_.Between(0, step);
      if (states.erase(deleted) == 1) {
        CAIRN_ASSERT_OK(store->Delete({&deleted, 1}));
      }
    }
  }
  for (const auto& [step, bytes] : states) EXPECT_TRUE(LoadBytes(step, "w") == bytes) << step;
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

}  // namespace
}  // namespace cairn::core
