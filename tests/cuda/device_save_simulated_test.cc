// The calls of a save of tensors in device memory, as counted by the simulated CUDA runtime: what
// crosses the bus, what waits for what, and the state after an error of any call.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "core/async_save.h"
#include "core/load/load_options.h"
#include "core/save/save_options.h"
#include "core/upkeep/step_part.h"
#include "kv/base/digest.h"
#include "kv/base/step_info.h"
#include "tests/core/foreign_chunks.h"
#include "tests/cuda/device_store_fixture.h"
#include "tests/support/fake_s3.h"
#include "tests/support/simulated_cuda/simulated_cuda.h"

namespace cairn::cuda {
namespace {

using simulated_cuda::Counters;
using testing::DeviceBytes;
using testing::DeviceStoreTest;
using testing::RandomBytes;

// Every operation of a stream starts after a random delay, so that missing waits are detected.
class LateStreams : public ::testing::Environment {
 public:
  void SetUp() override { simulated_cuda::Reset({.jitter_us = 100, .shuffle_threads = true}); }
};
[[maybe_unused]] const auto* const late_streams =
    ::testing::AddGlobalTestEnvironment(new LateStreams);

class DeviceSaveTest : public DeviceStoreTest {
 protected:
  // 600 pages in tensors of several lengths.
  void AddPages() {
    for (const uint64_t pages : {200, 130, 64, 100, 6, 100}) {
      AddPlain("layer." + std::to_string(host_.size()), pages * kv::kPageBytes);
    }
  }
  static constexpr uint64_t kPages = 600;
  // One bit per page, at least one word per queue and call, and the digests of changed chunks.
  static constexpr uint64_t kPageDigestBytes = kPages * 8 + 1024;
};

TEST_F(DeviceSaveTest, NothingChangedAndNoPayloadCrossesTheBus) {
  AddPages();
  CAIRN_ASSERT_OK(store_->Save(1, State()));
  simulated_cuda::ResetCounters();
  CAIRN_ASSERT_OK(store_->Save(2, State()));
  const Counters counters = simulated_cuda::GetCounters();
  EXPECT_LE(counters.d2h_bytes, kPages / 8 + 64);
  ExpectStored(2);
}

// The digests of a device are those of pages of 64 KiB.
TEST_F(DeviceSaveTest, AChunkWhoseBaseHasSmallerPagesIsWrittenAgain) {
  AddPlain("w", 3 * kv::kPageBytes + 77);
  core::TensorView host = tensors_.at("w").view;
  host.data = host_.front().data();
  host.device = core::kHostDevice;
  CAIRN_ASSERT_OK(
      core::WriteForeign(*store_, 1, host, {core::WholeBox(host.shape)}, kv::kMinPageBits));
  CAIRN_ASSERT_OK(store_->Save(2, State(), {.unchanged = {"w"}}));
  ExpectStored(2);
  Write("w", 5, RandomBytes(10, 3));
  CAIRN_ASSERT_OK(store_->Save(3, State()));
  ExpectStored(3);
}

// Page-locked blocks are shorter than the parts of S3.
TEST_F(DeviceSaveTest, AStepIsSavedToABucket) {
  const testing::FakeS3 server;
  store_.reset();
  CAIRN_ASSERT_OK_AND_ASSIGN(
      store_, core::CheckpointStore::Open(testing::OpenBucket(server), kv::OpenMode::kWrite));
  AddModel();
  CAIRN_ASSERT_OK(store_->Save(1, State()));
  ExpectStored(1);
  Write("large", 70'000, RandomBytes(5'000'000, 3));
  {
    core::AsyncSaver saver(store_.get());
    CAIRN_ASSERT_OK_AND_ASSIGN(const core::SaveHandle handle, saver.Save(2, State(), {}));
    CAIRN_ASSERT_OK(handle.Wait());
  }
  ExpectStored(2);
  ExpectLoadsToDevice(2);
  store_.reset();  // before the server
}

TEST_F(DeviceSaveTest, ATensorThatChangesAfterItsDigestIsRefused) {
  AddPages();
  CAIRN_ASSERT_OK(store_->Save(1, State()));
  const core::TensorView last = tensors_.rbegin()->second.view;
  auto* const byte = const_cast<std::byte*>(last.data) + 70'000;
  for (const auto& [name, held] : tensors_) {
    auto* const data = const_cast<std::byte*>(held.view.data);
    ASSERT_EQ(cudaMemset(data, 0x21, kv::kPageBytes), cudaSuccess);
  }
  bool has_changed = false;
  const auto change = [&](uint64_t, uint64_t) {
    if (has_changed) return true;
    has_changed = true;
    return cudaMemset(byte, 0x5a, 1) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess;
  };
  const auto saved = store_->Save(2, State(), {.incremental = false, .progress = change});
  EXPECT_TRUE(has_changed);
  EXPECT_THAT(saved, testing::IsError(ErrorCode::kInvalidArgument, "changed"));
  EXPECT_EQ(saved.error().key, tensors_.rbegin()->first);
  CAIRN_ASSERT_OK(store_->Save(2, State()));
}

TEST_F(DeviceSaveTest, APercentOfThePagesCostsAPercentOfTheBus) {
  AddPages();
  CAIRN_ASSERT_OK(store_->Save(1, State()));
  const std::vector<std::byte> bytes = RandomBytes(100, 5);
  Write("layer.0", 17 * kv::kPageBytes + 5, bytes);
  Write("layer.0", 100 * kv::kPageBytes, bytes);
  Write("layer.1", 0, bytes);
  Write("layer.3", 99 * kv::kPageBytes, bytes);
  Write("layer.4", 5 * kv::kPageBytes, bytes);
  Write("layer.5", 50 * kv::kPageBytes - 50, std::span(bytes).first(50));  // the end of a tensor
  simulated_cuda::ResetCounters();
  CAIRN_ASSERT_OK_AND_ASSIGN(const core::SaveReport report, store_->Save(2, State()));
  EXPECT_EQ(report.written_bytes, 6 * kv::kPageBytes);
  EXPECT_LE(simulated_cuda::GetCounters().d2h_bytes,
            kPages * kv::kPageBytes * 11 / 1000 + kPageDigestBytes);
  ExpectStored(2);
}

TEST_F(DeviceSaveTest, TheSavePathWaitsForNoDevice) {
  AddModel();
  core::AsyncSaver saver(store_.get());
  cudaStream_t training = nullptr;
  cudaStream_t other = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&training, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  core::SaveOptions options;
  options.streams = {{.device = 0, .stream = training}};
  // The first save may allocate, but it too waits only for its own stream.
  for (uint64_t step = 1; step <= 4; ++step) {
    options.device_snapshot = step == 4;
    Write("large", step * 100'000, RandomBytes(70'000, step));
    if (step == 2) simulated_cuda::ResetCounters();
    const uint64_t own_copies = simulated_cuda::GetCounters().pageable_count;
    simulated_cuda::StreamBlock spinning(other);
    spinning.WaitUntilReached();
    CAIRN_ASSERT_OK_AND_ASSIGN(const core::SaveHandle handle, saver.Save(step, State(), options));
    ASSERT_TRUE(handle.WaitFor(std::chrono::minutes(9))) << "it waits for a stream that spins";
    CAIRN_ASSERT_OK(handle.Wait());
    handle.WaitStaged();
    CAIRN_ASSERT_OK(handle.MakeStreamWait({.device = 0, .stream = training}));
    spinning.Release();
    EXPECT_EQ(simulated_cuda::GetCounters().pageable_count, own_copies);
    ExpectStored(step);
    if (step == 2) simulated_cuda::ResetCounters();
  }
  const Counters counters = simulated_cuda::GetCounters();
  EXPECT_EQ(counters.host_alloc_count, 0u);
  EXPECT_EQ(counters.host_register_count, 0u);
  EXPECT_EQ(counters.device_synchronize_count, 0u);
  EXPECT_EQ(counters.implicit_synchronize_count, 0u);
  ASSERT_EQ(cudaStreamDestroy(training), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(other), cudaSuccess);
}

TEST_F(DeviceSaveTest, ReturnsWhileTheCallersStreamIsStillAtWork) {
  AddModel();
  core::AsyncSaver saver(store_.get());
  cudaStream_t training = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&training, cudaStreamNonBlocking), cudaSuccess);
  simulated_cuda::StreamBlock forward(training);
  core::SaveOptions options;
  options.streams = {{.device = 0, .stream = training}};
  CAIRN_ASSERT_OK_AND_ASSIGN(const core::SaveHandle handle, saver.Save(1, State(), options));
  EXPECT_FALSE(handle.done());
  // What the stream writes before the save still belongs to it.
  const std::vector<std::byte> late = RandomBytes(1000, 77);
  EXPECT_FALSE(handle.WaitFor(std::chrono::milliseconds(50)));
  forward.Release();
  CAIRN_ASSERT_OK(handle.Wait());
  ExpectStored(1);
  ASSERT_EQ(cudaStreamDestroy(training), cudaSuccess);
}

TEST_F(DeviceSaveTest, ASnapshotWithoutMemoryIsStagedLazily) {
  AddModel();
  core::AsyncSaver saver(store_.get());
  CAIRN_ASSERT_OK_AND_ASSIGN(auto* const backend, core::FindDeviceBackend());
  CAIRN_ASSERT_OK_AND_ASSIGN(const uint64_t free_bytes, backend->FreeBytes(0));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto hog, backend->Allocate(0, free_bytes - (100 << 20)));
  core::SaveOptions options;
  options.device_snapshot = true;
  CAIRN_ASSERT_OK_AND_ASSIGN(const core::SaveHandle handle, saver.Save(1, State(), options));
  handle.WaitStaged();
  CAIRN_ASSERT_OK(handle.Wait());
  ExpectStored(1);
}

TEST_F(DeviceSaveTest, AnyCallMayFailAndNothingIsLost) {
  AddPlain("a", 9 * kv::kPageBytes + 11);
  AddPlain("b", 500);
  Add("c", 1 << 18, {.dtype = core::DType::kFloat32, .shape = {100, 60}, .strides = {128, 1}});
  CAIRN_ASSERT_OK(store_->Save(1, State()));
  uint64_t step = 2;
  uint64_t failed = 0;
  for (uint64_t nth = 1;; ++nth) {
    Write("a", nth * 64 % 100'000, RandomBytes(64, nth));
    Write("c", nth % 1000, RandomBytes(4, nth));
    simulated_cuda::FailCall("*", nth, cudaErrorMemoryAllocation);
    const auto report = store_->Save(step, State());
    const bool happened = simulated_cuda::FaultHappened("*");
    simulated_cuda::ClearFaults();
    if (report) {
      ExpectStored(step++);
    } else {
      ++failed;
      EXPECT_EQ(report.error().code, ErrorCode::kResourceExhausted) << report.error().ToString();
      CAIRN_ASSERT_OK(store_->Save(step, State()));  // the next save succeeds
      ExpectStored(step++);
    }
    if (!happened) break;
    ASSERT_LT(nth, 1000u);
  }
  EXPECT_GT(failed, 10u);
  ExpectLoadsToDevice(step - 1);
}

TEST_F(DeviceSaveTest, AnyCallOfAPartMayFailAndNoStepIsMade) {
  AddPlain("a", 9 * kv::kPageBytes + 11);
  AddPlain("b", 500);
  CAIRN_ASSERT_OK(store_->Save(1, State()));
  const auto save = [&](uint64_t step) -> Result<core::SaveReport> {
    CAIRN_TRY_ASSIGN(const core::StepTicket ticket, core::StepPart::OpenSession(*store_, step, 1));
    CAIRN_TRY_ASSIGN(auto part, core::StepPart::Begin(*store_, ticket, 0, {}));
    Result<void> added;
    for (const std::string name : {"a", "b"}) {
      core::StateDict portion;
      portion.root().Tensor(name, tensors_.at(name).view);
      if (auto one = part->Add(std::move(portion)); !one) added = one;
    }
    auto report = part->Commit({});
    EXPECT_TRUE(added || !report) << "a step without a portion was committed";
    return report;
  };
  uint64_t step = 2;
  uint64_t failed = 0;
  for (uint64_t nth = 1;; ++nth) {
    ASSERT_LT(nth, 1000u);
    Write("a", nth * 64 % 100'000, RandomBytes(64, nth));
    Write("b", nth % 400, RandomBytes(4, nth));
    simulated_cuda::FailCall("*", nth, cudaErrorMemoryAllocation);
    const auto report = save(step);
    const bool happened = simulated_cuda::FaultHappened("*");
    simulated_cuda::ClearFaults();
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, store_->Steps());
    EXPECT_EQ(steps.size(), report ? step : step - 1);
    if (report) {
      ExpectStored(step++);
    } else {
      ++failed;
      EXPECT_EQ(report.error().code, ErrorCode::kResourceExhausted) << report.error().ToString();
    }
    if (!happened) break;
  }
  EXPECT_GT(failed, 10u);
}

TEST_F(DeviceSaveTest, AnyCallOfALoadMayFail) {
  AddPlain("a", 9 * kv::kPageBytes + 11);
  AddPlain("b", 500);
  Add("c", 1 << 18, {.dtype = core::DType::kFloat32, .shape = {100, 60}, .strides = {128, 1}});
  CAIRN_ASSERT_OK(store_->Save(1, State()));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store_->kv().Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const kv::StepInfo info, snapshot->FindStep(1));
  const DeviceBytes target(std::vector<std::byte>(2 << 20));
  const std::vector<core::LoadRequest> requests{
      {.fqn = "a",
       .box = core::WholeBox(tensors_["a"].view.shape),
       .target = {core::DType::kUInt8, tensors_["a"].view.shape, {}, target.data(), 0}},
      {.fqn = "c",
       .box = core::WholeBox(tensors_["c"].view.shape),
       .target = {core::DType::kFloat32, {100, 60}, {128, 1}, target.data() + (1 << 20), 0}}};
  uint64_t failed = 0;
  for (uint64_t nth = 1;; ++nth) {
    ASSERT_LT(nth, 1000u);
    simulated_cuda::FailCall("*", nth, cudaErrorInvalidValue);
    const auto report = store_->Load(info, requests);
    const bool happened = simulated_cuda::FaultHappened("*");
    simulated_cuda::ClearFaults();
    if (!report) ++failed;
    if (happened) continue;
    CAIRN_EXPECT_OK(report);
    break;
  }
  EXPECT_GT(failed, 5u);
  ExpectLoadsToDevice(1);
}

TEST_F(DeviceSaveTest, SegmentsCloseAfterTheStaging) {
  // More tensors than the entries of a segment.
  const std::vector<std::byte> bytes = RandomBytes(70'000, 6);
  host_.push_back(bytes);
  storages_.emplace_back(bytes);
  const core::StateDict state = OneByteTensors(storages_.back());
  CAIRN_ASSERT_OK_AND_ASSIGN(const core::SaveReport report, store_->Save(1, state));
  EXPECT_EQ(report.written_bytes, bytes.size());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store_->kv().Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto segments, snapshot->Segments());
  EXPECT_EQ(segments.size(), 2u);
  CAIRN_ASSERT_OK_AND_ASSIGN(const kv::StepInfo info, snapshot->FindStep(1));
  std::vector<std::byte> read(bytes.size());
  std::vector<core::LoadRequest> requests;
  for (uint64_t i = 0; i < bytes.size(); ++i) {
    requests.push_back(
        {.fqn = std::to_string(i),
         .box = core::WholeBox(std::vector<uint64_t>{1}),
         .target = {.dtype = core::DType::kUInt8, .shape = {1}, .data = read.data() + i}});
  }
  CAIRN_ASSERT_OK(store_->Load(info, requests));
  EXPECT_TRUE(read == bytes);
}

}  // namespace
}  // namespace cairn::cuda
