// Chunks that are not copied to staging, because they are unchanged.

#include "core/save/internal/staging.h"

#include "core/async_save.h"
#include "core/save/internal/save.h"
#include "core/save/internal/save_planner.h"
#include "core/save/internal/saved_chunks.h"
#include "core/save/save_options.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;
using internal::SavedChunks;
using internal::SavePlan;
using internal::StagingArea;

constexpr uint64_t kChunkBytes = 100'000;
const SaveOptions kOptions{.chunk_bytes = kChunkBytes};

/// Plans and stages a state without the chunks that are unchanged since `base`.
SavePlan StagedPlan(StagingArea& staging, const StateDict& state, const SavedChunks* base) {
  auto plan = internal::PlanSave(state, kOptions);
  EXPECT_TRUE(testing::IsOk(plan));
  EXPECT_TRUE(testing::IsOk(staging.Stage(*plan, base)));
  return *std::move(plan);
}

class StagingTest : public StoreTest {
 protected:
  Result<SaveReport> Run(uint64_t step, SavePlan& plan, SavedChunks* saved = nullptr) {
    return internal::RunSave(plan, {.store = store->kv(),
                                    .attempt = {.step = step},
                                    .self = {},
                                    .options = kOptions,
                                    .pool = workers_,
                                    .saved = saved});
  }

  SavedChunks SaveAndRecord(uint64_t step, SavePlan plan) {
    SavedChunks saved;
    EXPECT_TRUE(testing::IsOk(Run(step, plan, &saved)));
    return saved;
  }
  kv::WorkerPool workers_{2};
};

TEST_F(StagingTest, ASaveWhoseBaseWentAwayFailsAndLeavesNothing) {
  TestTensor tensor(DType::kUInt8, {450'000});
  const StateDict state = StateOf({{"w", tensor.view()}});
  StagingArea staging;
  SaveAndRecord(1, StagedPlan(staging, state, nullptr));
  const SavedChunks base = SaveAndRecord(2, StagedPlan(staging, state, nullptr));
  SavePlan plan = StagedPlan(staging, state, &base);
  CAIRN_ASSERT_OK(store->Delete(std::array<uint64_t, 2>{1, 2}));

  EXPECT_THAT(Run(3, plan), IsError(ErrorCode::kConflict, "save again"));

  CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, store->Steps());
  EXPECT_TRUE(steps.empty());
}

TEST_F(StagingTest, AsyncSavesOfAStateThatHardlyChangesKeepEveryStep) {
  TestTensor tensor(DType::kUInt8, {450'000});
  const StateDict state = StateOf({{"w", tensor.view()}});
  AsyncSaver saver(store.get());
  std::vector<std::vector<std::byte>> held;
  for (uint64_t step = 0; step < 60; step += 10) {
    tensor.bytes[step * 6'000] ^= std::byte{1};
    held.push_back(tensor.bytes);
    CAIRN_ASSERT_OK_AND_ASSIGN(const SaveReport report, SaveAndWait(saver, step, state, kOptions));
    EXPECT_EQ(report.chunks_reused, step == 0 ? 0u : 4u);
    if (step == 30) {
      // Another step in between, with which the next save is compared.
      Save(35, state, {.chunk_bytes = kChunkBytes});
      CAIRN_ASSERT_OK(store->Delete(std::array<uint64_t, 2>{20, 30}));
    }
  }
  for (const uint64_t i : {0, 1, 4, 5}) EXPECT_EQ(LoadBytes(10 * i, "w"), held[i]) << i;
  // Chunks of the same bytes are copied if they have other keys.
  CAIRN_ASSERT_OK(SaveAndWait(
      saver, 60, StateOf({{"w", {DType::kUInt8, {45, 10'000}, {}, tensor.bytes.data()}}}),
      kOptions));
  EXPECT_EQ(LoadBytes(60, "w"), tensor.bytes);
  EXPECT_TRUE(VerifyAll().empty());
}

}  // namespace
}  // namespace cairn::core
