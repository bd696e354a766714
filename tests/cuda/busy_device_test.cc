// Saves wait only for the caller's streams and for their own work on the device: they end while
// another stream stays busy.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <utility>

#include "tests/cuda/device_store_fixture.h"

namespace cairn::cuda {
namespace {

using testing::DeviceStoreTest;

/// Work on a separate stream that ends when Release or the destructor is called.
class EndlessWork {
 public:
  EndlessWork() {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaLaunchHostFunc(
                  stream_,
                  [](void* released) { static_cast<std::shared_future<void>*>(released)->wait(); },
                  &released_),
              cudaSuccess);
  }
  ~EndlessWork() {
    Release();
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }
  EndlessWork(const EndlessWork&) = delete;
  EndlessWork& operator=(const EndlessWork&) = delete;

  bool IsRunning() const { return cudaStreamQuery(stream_) == cudaErrorNotReady; }
  void Release() {
    if (!std::exchange(is_released_, true)) release_.set_value();
  }

 private:
  cudaStream_t stream_ = nullptr;
  std::promise<void> release_;
  std::shared_future<void> released_ = release_.get_future().share();
  bool is_released_ = false;
};

class BusyDeviceTest : public DeviceStoreTest {
 protected:
  /// Fails if `work` is not done while another stream is busy.
  static void ExpectDoneBesideEndlessWork(const std::function<Result<void>()>& work) {
    EndlessWork endless;
    std::future<Result<void>> done = std::async(std::launch::async, work);
    EXPECT_EQ(done.wait_for(std::chrono::seconds(300)), std::future_status::ready)
        << "it waits for the complete device";
    EXPECT_TRUE(endless.IsRunning());
    endless.Release();
    CAIRN_EXPECT_OK(done.get());
  }
};

TEST_F(BusyDeviceTest, SavesDoNotWaitForTheCompleteDevice) {
  AddModel();
  // The first save allocates buffers and loads kernels, for which CUDA may wait for the device.
  CAIRN_ASSERT_OK(store_->Save(1, State()));
  Write("large", 0, testing::RandomBytes(kv::kPageBytes, 1));
  ExpectDoneBesideEndlessWork([&]() -> Result<void> {
    CAIRN_TRY(store_->Save(2, State()));
    return {};
  });
  ExpectStored(2);
}

}  // namespace
}  // namespace cairn::cuda
