// A device fails while a save uses all of a small budget.

#include <gtest/gtest.h>

#include <vector>

#include "core/async_save.h"
#include "core/save/save_options.h"
#include "tests/cuda/device_store_fixture.h"
#include "tests/support/simulated_cuda/simulated_cuda.h"

namespace cairn::cuda {
namespace {

using SmallBudgetFailureTest = testing::DeviceStoreTest;

TEST_F(SmallBudgetFailureTest, AFailedDeviceEndsTheSaveWithoutAHang) {
  // Two segments share one block, so that waits of the closing thread fail too.
  const std::vector<std::byte> bytes = testing::RandomBytes(70'000, 6);
  const testing::DeviceBytes storage(bytes);
  const core::StateDict state = OneByteTensors(storage);
  core::AsyncSaver saver(store_.get());
  uint64_t failed = 0;
  for (uint64_t nth = 4; nth <= 9; ++nth) {  // the first waits are those of digests
    core::SaveOptions options;
    options.incremental = false;
    simulated_cuda::FailCall("cudaEventSynchronize", nth, cudaErrorUnknown);
    CAIRN_ASSERT_OK_AND_ASSIGN(const core::SaveHandle handle, saver.Save(nth, state, options));
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
