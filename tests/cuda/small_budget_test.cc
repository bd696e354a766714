// A budget of page-locked memory that is far smaller than the state: copies wait for the disk, and
// everything is as right as with a large one.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/async_save.h"
#include "core/internal/pinned_blocks.h"
#include "tests/cuda/device_store_fixture.h"
#include "tests/support/simulated_cuda/simulated_cuda.h"

namespace cairn::cuda {
namespace {

using testing::DeviceStoreTest;

// Before the pool is made; it is the process's.
[[maybe_unused]] const int one_block = ::setenv("CAIRN_PINNED_BYTES", "4194304", 1);

class SmallBudgetTest : public DeviceStoreTest {};

TEST_F(SmallBudgetTest, OneBlockIsEnough) {
  AddModel();
  CAIRN_ASSERT_OK(store_->Save(1, State()));
  ExpectStored(1);
  ExpectLoadsToDevice(1);
  core::AsyncSaver saver(store_.get());
  for (uint64_t step = 2; step < 4; ++step) {
    core::SaveOptions options;
    options.incremental = false;
    CAIRN_ASSERT_OK_AND_ASSIGN(const core::SaveHandle handle, saver.Save(step, State(), options));
    handle.WaitStaged();
    CAIRN_ASSERT_OK(handle.Wait());
    ExpectStored(step);
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto pool, core::internal::PinnedBlocks());
  EXPECT_EQ(pool->allocated_bytes(), core::internal::kPinnedBlockBytes);
}

TEST_F(SmallBudgetTest, AFailedDeviceEndsTheSaveAndNotInAHang) {
  // Two segments that share one block; the waits that fail are the closing thread's, too.
  const std::vector<std::byte> bytes = testing::RandomBytes(70'000, 6);
  const testing::DeviceBytes storage(bytes);
  core::StateDict state;
  for (uint64_t i = 0; i < bytes.size(); ++i) {
    state.root().Tensor(
        std::to_string(i),
        {.dtype = core::DType::kUInt8, .shape = {1}, .data = storage.data() + i, .device = 0});
  }
  core::AsyncSaver saver(store_.get());
  uint64_t failed = 0;
  for (uint64_t nth = 1; nth <= 7; nth += 2) {
    core::SaveOptions options;
    options.incremental = false;
    simulated_cuda::FailCall("cudaEventSynchronize", nth, cudaErrorUnknown);
    CAIRN_ASSERT_OK_AND_ASSIGN(const core::SaveHandle handle, saver.Save(nth, state, options));
    ASSERT_TRUE(handle.WaitFor(std::chrono::seconds(120)));
    handle.WaitStaged();
    if (const auto report = handle.Wait(); !report) {
      ++failed;
      EXPECT_EQ(report.error().code, ErrorCode::kUnavailable) << report.error().ToString();
    }
    simulated_cuda::ClearFaults();
  }
  EXPECT_GT(failed, 1u);
}

}  // namespace
}  // namespace cairn::cuda
