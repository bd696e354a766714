// Saves and loads while a CUDA graph is captured.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>

#include "core/save/save_options.h"
#include "tests/cuda/device_store_fixture.h"

namespace cairn::cuda {
namespace {

using testing::IsError;

class CaptureTest : public testing::DeviceStoreTest {
 protected:
  void SetUp() override {
    DeviceStoreTest::SetUp();
    if (IsSkipped()) return;
    AddModel();
    CAIRN_ASSERT_OK(store_->Save(1, State()));
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    if (stream_ == nullptr) return;
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }
  /// Runs `work` on this thread during a capture, and expects that the capture succeeds.
  void DuringCapture(const std::function<void()>& work) {
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
    work();
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }

  cudaStream_t stream_ = nullptr;
};

TEST_F(CaptureTest, AnotherThreadSaves) {
  Write("large", 0, testing::RandomBytes(kv::kPageBytes, 1));
  DuringCapture([&] {
    CAIRN_EXPECT_OK(std::async(std::launch::async, [&] { return store_->Save(2, State()); }).get());
  });
  ExpectStored(2);
}

TEST_F(CaptureTest, TheFirstSaveOfNewTensorsAllocates) {
  AddPlain("new", 24 << 20);
  DuringCapture([&] {
    CAIRN_EXPECT_OK(std::async(std::launch::async, [&] { return store_->Save(2, State()); }).get());
  });
  ExpectStored(2);
}

TEST_F(CaptureTest, ASaveOfTheStreamThatCapturesIsRefused) {
  core::SaveOptions options;
  options.streams = {{.device = 0, .stream = stream_}};
  DuringCapture([&] {
    EXPECT_THAT(store_->Save(2, State(), options),
                IsError(ErrorCode::kFailedPrecondition, "graph is being captured"));
  });
  CAIRN_EXPECT_OK(store_->Save(2, State(), options));
  ExpectStored(2);
}

}  // namespace
}  // namespace cairn::cuda
