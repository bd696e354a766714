// Steps of tensors in device memory: loads return what was saved, and only what changed is copied.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/async_save.h"
#include "core/save/save_options.h"
#include "kv/base/digest.h"
#include "tests/cuda/device_store_fixture.h"

namespace cairn::cuda {
namespace {

using testing::DeviceBytes;
using testing::DeviceStoreTest;
using testing::RandomBytes;

TEST_F(DeviceStoreTest, LoadsReturnWhatWasSaved) {
  AddModel();
  CAIRN_ASSERT_OK_AND_ASSIGN(const core::SaveReport report, store_->Save(1, State()));
  EXPECT_EQ(report.written_bytes, report.logical_bytes);
  ExpectStored(1);
  ExpectLoadsToDevice(1);
}

TEST_F(DeviceStoreTest, WritesNothingWhereNothingChanged) {
  AddModel();
  CAIRN_ASSERT_OK(store_->Save(1, State()));
  CAIRN_ASSERT_OK_AND_ASSIGN(core::SaveReport report, store_->Save(2, State()));
  EXPECT_EQ(report.written_bytes, 0u);
  EXPECT_EQ(report.device_bytes, 0u);
  EXPECT_EQ(report.chunks_reused, report.chunks);
  // A new process has no digests on the device, and compares with the stored ones.
  OpenStore();
  CAIRN_ASSERT_OK_AND_ASSIGN(report, store_->Save(3, State()));
  EXPECT_EQ(report.written_bytes, 0u);
  ExpectStored(3);
}

TEST_F(DeviceStoreTest, WritesThePagesThatChanged) {
  AddModel();
  CAIRN_ASSERT_OK(store_->Save(1, State()));
  const std::vector<std::byte> page = RandomBytes(kv::kPageBytes, 1234);
  Write("large", 20 * kv::kPageBytes, page);
  Write("pages", 3 * kv::kPageBytes + 7, std::span(page).first(1));
  Write("small.7", 0, std::span(page).first(3));
  Write("strided.rows", 4096, std::span(page).first(40));
  CAIRN_ASSERT_OK_AND_ASSIGN(core::SaveReport report, store_->Save(2, State()));
  // Three pages, one of which is as long as the small tensor.
  EXPECT_EQ(report.written_bytes, 3 * kv::kPageBytes + 1 + 7 * 13);
  EXPECT_EQ(report.device_bytes, report.written_bytes);
  ExpectStored(1 + 1);
  ExpectLoadsToDevice(2);
  // Again, now with the digests of the base from the store.
  OpenStore();
  Write("large", 20 * kv::kPageBytes + 1, std::span(page).first(100));
  CAIRN_ASSERT_OK_AND_ASSIGN(report, store_->Save(3, State()));
  EXPECT_EQ(report.written_bytes, kv::kPageBytes);
  ExpectStored(3);
}

TEST_F(DeviceStoreTest, AsynchronousSavesKeepWhatWasThere) {
  AddModel();
  core::AsyncSaver saver(store_.get());
  cudaStream_t training = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&training, cudaStreamNonBlocking), cudaSuccess);
  for (const bool snapshot : {false, true}) {
    for (uint64_t round = 0; round < 3; ++round) {
      const uint64_t step = 1 + round + (snapshot ? 10 : 0);
      core::SaveOptions options;
      options.streams = {{.device = 0, .stream = training}};
      options.device_snapshot = snapshot;
      CAIRN_ASSERT_OK_AND_ASSIGN(const core::SaveHandle handle, saver.Save(step, State(), options));
      // The training continues with the same tensors as soon as its stream allows it.
      if (!snapshot) {
        CAIRN_ASSERT_OK(handle.MakeStreamWait({.device = 0, .stream = training}));
      }
      for (DeviceBytes& storage : storages_) {
        ASSERT_EQ(cudaMemsetAsync(storage.data(), static_cast<int>(step), storage.length_bytes(),
                                  training),
                  cudaSuccess);
      }
      CAIRN_ASSERT_OK(handle.Wait());
      ASSERT_EQ(cudaStreamSynchronize(training), cudaSuccess);
      ExpectStored(step);
      for (size_t i = 0; i < host_.size(); ++i) {
        std::fill(host_[i].begin(), host_[i].end(), static_cast<std::byte>(step));
      }
    }
  }
  ASSERT_EQ(cudaStreamDestroy(training), cudaSuccess);
}

}  // namespace
}  // namespace cairn::cuda
