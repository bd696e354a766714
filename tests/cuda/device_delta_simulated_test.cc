// Deltas of tensors in device memory, with the calls that the simulated CUDA runtime counts and
// refuses: what crosses the bus, what is released, and the state after an error of any call.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "core/async_save.h"
#include "core/save/internal/device_save.h"
#include "core/save/internal/save_planner.h"
#include "tests/cuda/device_delta_fixture.h"
#include "tests/support/simulated_cuda/simulated_cuda.h"

namespace cairn::cuda {
namespace {

using kv::kPageBytes;
using simulated_cuda::Counters;
using ::testing::Each;
using testing::RandomBytes;

class DeviceDeltaCallsTest : public testing::DeviceDeltaTest {};

TEST_F(DeviceDeltaCallsTest, OnlyListsCrossTheBus) {
  AddWeights("w", 100 * kPageBytes / 2);
  Save(1, WithDeltas());
  Train("w", 200);
  simulated_cuda::ResetCounters();
  const core::SaveReport report = Save(2, WithDeltas());
  const Counters counters = simulated_cuda::GetCounters();
  EXPECT_THAT(DeltasOf(2, "w"), Each(1u));
  // 4 bytes per element that changed, a count and two digests per page, and bits for changed pages.
  EXPECT_LE(report.device_bytes, LengthBytes("w") / 2 / 200 * 4 * 11 / 10);
  EXPECT_LE(counters.d2h_bytes, report.device_bytes + 100 * (4 + 8) + 256);
  EXPECT_EQ(counters.device_synchronize_count, 0u);
  EXPECT_EQ(counters.implicit_synchronize_count, 0u);
  ExpectStored(2);
}

TEST_F(DeviceDeltaCallsTest, CopiesAreFreedWithTheStore) {
  AddWeights("w", 100 * kPageBytes / 2);
  const auto device_bytes = [] {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // memory is freed in the order of a stream
    return simulated_cuda::GetLive().device_bytes;
  };
  Save(1, WithDeltas());
  Train("w");
  Save(2, WithDeltas());
  const uint64_t with_a_copy = device_bytes();  // and with the buffers of the queue, which remain
  for (uint64_t step = 3; step <= 5; ++step) {
    Train("w");
    Save(step, WithDeltas());
    EXPECT_EQ(device_bytes(), with_a_copy);
  }
  store_.reset();
  EXPECT_LE(device_bytes(), with_a_copy - LengthBytes("w"));
}

TEST_F(DeviceDeltaCallsTest, TheSavePathWaitsForNoOtherStream) {
  AddWeights("w", 30 * kPageBytes / 2);
  core::AsyncSaver saver(store_.get());
  cudaStream_t training = nullptr;
  cudaStream_t other = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&training, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  for (uint64_t step = 1; step <= 4; ++step) {
    core::SaveOptions options = WithDeltas();
    options.streams = {{.device = 0, .stream = training}};
    options.device_snapshot = step == 4;
    Train("w");
    if (step == 3) simulated_cuda::ResetCounters();
    const uint64_t own_copies = simulated_cuda::GetCounters().pageable_count;
    simulated_cuda::StreamBlock spinning(other);
    spinning.WaitUntilReached();
    CAIRN_ASSERT_OK_AND_ASSIGN(const core::SaveHandle handle, saver.Save(step, State(), options));
    ASSERT_TRUE(handle.WaitFor(std::chrono::seconds(60))) << "it waits for a stream that spins";
    CAIRN_ASSERT_OK(handle.Wait());
    EXPECT_EQ(simulated_cuda::GetCounters().pageable_count, own_copies);
    spinning.Release();
    ExpectStored(step);
    EXPECT_THAT(DeltasOf(step, "w"), Each(step - 1));
  }
  const Counters counters = simulated_cuda::GetCounters();
  EXPECT_EQ(counters.host_alloc_count, 0u);
  EXPECT_EQ(counters.device_synchronize_count, 0u);
  EXPECT_EQ(counters.implicit_synchronize_count, 0u);
  ASSERT_EQ(cudaStreamDestroy(training), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(other), cudaSuccess);
}

TEST_F(DeviceDeltaCallsTest, ATensorWithACopyIsNotCopiedForASnapshot) {
  AddWeights("w", 100 * kPageBytes / 2);
  core::AsyncSaver saver(store_.get());
  core::SaveOptions options = WithDeltas();
  options.device_snapshot = true;
  for (uint64_t step = 1; step <= 3; ++step) {
    Train("w");
    if (step == 3) simulated_cuda::ResetCounters();
    CAIRN_ASSERT_OK_AND_ASSIGN(const core::SaveHandle handle, saver.Save(step, State(), options));
    CAIRN_ASSERT_OK(handle.Wait());
    ExpectStored(step);
  }
  EXPECT_EQ(simulated_cuda::GetCounters().d2d_bytes, 0u);
}

TEST_F(DeviceDeltaCallsTest, WithoutFreeMemoryThereAreNoCopies) {
  AddWeights("w", 100 * kPageBytes / 2);
  CAIRN_ASSERT_OK_AND_ASSIGN(auto* const backend, core::FindDeviceBackend());
  CAIRN_ASSERT_OK_AND_ASSIGN(const uint64_t free_bytes, backend->FreeBytes(0));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto hog, backend->Allocate(0, free_bytes - (515 << 20)));
  for (uint64_t step = 1; step <= 3; ++step) {
    Train("w");
    Save(step, WithDeltas());
    EXPECT_THAT(DeltasOf(step, "w"), Each(0u));
    ExpectStored(step);
  }
}

TEST_F(DeviceDeltaCallsTest, AnyCallMayFailAndNothingIsLost) {
  host_tensor_.resize(1000);
  AddWeights("a", 18 * kPageBytes / 2 + 5);
  AddWeights("b", 2 * kPageBytes / 2);
  AddPlain("c", 500);
  core::SaveOptions options = WithDeltas();
  options.statistics = true;
  Save(1, options);
  uint64_t step = 2;
  uint64_t failed = 0;
  uint64_t without_deltas = 0;
  for (uint64_t nth = 1;; ++nth) {
    ASSERT_LT(nth, 1000u);
    Train("a");
    Train("b", 500);
    simulated_cuda::FailCall("*", nth, cudaErrorMemoryAllocation);
    const auto report = store_->Save(step, State(), options);
    const bool happened = simulated_cuda::FaultHappened("*");
    simulated_cuda::ClearFaults();
    if (!report) {
      ++failed;
      EXPECT_EQ(report.error().code, ErrorCode::kResourceExhausted) << report.error().ToString();
      Save(step, options);  // the next save succeeds
    } else {
      without_deltas += DeltasOf(step, "a").front() == 0;
    }
    ExpectStored(step++);
    if (!happened) break;
  }
  EXPECT_GT(failed, 10u);
  EXPECT_GT(without_deltas, 5u) << "without memory for lists the save must succeed";
  ExpectLoadsToDevice(step - 1);
}

// A save whose steps are called one by one, with changes of the tensors in between.
class ChangedTensorTest : public DeviceDeltaCallsTest {
 protected:
  struct Begun {
    core::internal::SavePlan plan;
    std::unique_ptr<core::internal::DeviceSave> device;
  };
  void Digest(Begun& begun, const core::internal::SavedChunks* base) {
    CAIRN_ASSERT_OK_AND_ASSIGN(begun.plan, core::internal::PlanSave(State(), WithDeltas()));
    CAIRN_ASSERT_OK_AND_ASSIGN(begun.device, core::internal::DeviceSave::Begin(begun.plan, {}));
    CAIRN_ASSERT_OK(begun.device->Digest(begun.plan, base));
  }
  static core::internal::PlannedShard& OnDevice(Begun& begun) {
    return *std::ranges::find_if(begun.plan.shards, &core::internal::PlannedShard::on_device);
  }
  // What a save that wrote `begun` would remember.
  static core::internal::SavedChunks Record(Begun& begun) {
    core::internal::SavedChunks saved;
    saved.chunk_bytes = kChunkBytes;
    for (const core::internal::PlannedShard& shard : begun.plan.shards) {
      saved.shards.push_back({.fqn = begun.plan.tensors[shard.tensor].fqn,
                              .dtype = begun.plan.tensors[shard.tensor].dtype,
                              .box = shard.grid.box(),
                              .first_chunk = shard.first_chunk,
                              .device = shard.source.device,
                              .first_page_digest = shard.first_page_digest,
                              .chunks = {},
                              .device_copy = shard.device_copy});
      saved.shards.back().chunks.resize(shard.chunk_count());
    }
    saved.page_digests = begun.device->TakePageDigests();
    return saved;
  }
};

TEST_F(ChangedTensorTest, HasNoDeltaThatContainsLaterBytes) {
  AddWeights("w", 40 * kPageBytes / 2);
  core::internal::SavedChunks none;
  Begun first;
  Digest(first, nullptr);
  CAIRN_ASSERT_OK(first.device->FindDeltas(first.plan, none, WithDeltas()));
  EXPECT_TRUE(OnDevice(first).has_stable_source);
  core::internal::SavedChunks base = Record(first);
  first.device.reset();

  Train("w");
  Begun second;
  Digest(second, &base);
  Train("w");  // while it is being saved
  CAIRN_ASSERT_OK(second.device->FindDeltas(second.plan, base, WithDeltas()));
  EXPECT_FALSE(OnDevice(second).has_stable_source);
  EXPECT_EQ(OnDevice(second).device_copy, nullptr);
  for (const auto& pages : OnDevice(second).pages) EXPECT_TRUE(pages.delta.empty());
}

TEST_F(ChangedTensorTest, LeavesNoCopyOfLaterBytes) {
  AddWeights("w", 40 * kPageBytes / 2);
  core::internal::SavedChunks none;
  Begun begun;
  Digest(begun, nullptr);
  Train("w");
  CAIRN_ASSERT_OK(begun.device->FindDeltas(begun.plan, none, WithDeltas()));
  EXPECT_FALSE(OnDevice(begun).has_stable_source);
  EXPECT_EQ(OnDevice(begun).device_copy, nullptr);
}

TEST_F(ChangedTensorTest, HasDeltasIfItDoesNotChange) {
  AddWeights("w", 40 * kPageBytes / 2);
  core::internal::SavedChunks none;
  Begun first;
  Digest(first, nullptr);
  CAIRN_ASSERT_OK(first.device->FindDeltas(first.plan, none, WithDeltas()));
  core::internal::SavedChunks base = Record(first);
  first.device.reset();
  Train("w");
  Begun second;
  Digest(second, &base);
  CAIRN_ASSERT_OK(second.device->FindDeltas(second.plan, base, WithDeltas()));
  EXPECT_TRUE(OnDevice(second).has_stable_source);
  for (const auto& pages : OnDevice(second).pages) EXPECT_FALSE(pages.delta.empty());
}

}  // namespace
}  // namespace cairn::cuda
