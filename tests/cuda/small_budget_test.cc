// With a budget of page-locked memory that is much smaller than the state, copies wait for the
// disk, and the results are the same as with a large budget.

#include <gtest/gtest.h>

#include <cstdlib>

#include "core/async_save.h"
#include "core/device/internal/pinned_blocks.h"
#include "core/save/save_options.h"
#include "tests/cuda/device_store_fixture.h"

namespace cairn::cuda {
namespace {

using testing::DeviceStoreTest;

// Set before the pool of the process is created.
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

}  // namespace
}  // namespace cairn::cuda
