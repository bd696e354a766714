// Deltas of tensors in device memory: what is written, what is kept for the next save, and what
// happens if there is not enough memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "core/async_save.h"
#include "schema/dtype.h"
#include "tests/cuda/device_delta_fixture.h"

namespace cairn::cuda {
namespace {

using kv::kPageBytes;
using testing::DeviceBytes;
using testing::DeviceDeltaTest;
using ::testing::Each;
using testing::IsOk;
using testing::RandomBytes;
using ::testing::SizeIs;

constexpr uint64_t kElements = 40 * kPageBytes / 2 + 777;

TEST_F(DeviceDeltaTest, ScatteredChangesAreWrittenAsDeltas) {
  AddWeights("w", kElements);
  AddModel();
  const core::SaveReport first = Save(1, WithDeltas());
  EXPECT_EQ(first.written_bytes, first.logical_bytes);
  Train("w");
  const core::SaveReport second = Save(2, WithDeltas());
  EXPECT_LT(second.written_bytes, LengthBytes("w") / 20);
  EXPECT_LT(second.device_bytes, LengthBytes("w") / 20);
  EXPECT_THAT(DeltasOf(2, "w"), SizeIs(3));
  EXPECT_THAT(DeltasOf(2, "w"), Each(1u));
  ExpectStored(2);
  ExpectLoadsToDevice(2);
}

TEST_F(DeviceDeltaTest, ASaveWithoutTheOptionFreesTheCopies) {
  AddWeights("w", kElements);
  Save(1, WithDeltas());
  Save(2, {.chunk_bytes = kChunkBytes});
  Train("w");
  EXPECT_GE(Save(3, WithDeltas()).written_bytes, LengthBytes("w"));
  Train("w");
  Save(4, WithDeltas());
  EXPECT_THAT(DeltasOf(4, "w"), Each(1u));
  ExpectStored(4);
}

TEST_F(DeviceDeltaTest, WithoutABudgetThereAreNone) {
  AddWeights("w", kElements);
  Save(1, WithDeltas(0));
  Train("w");
  EXPECT_GE(Save(2, WithDeltas(0)).written_bytes, LengthBytes("w"));
  EXPECT_THAT(DeltasOf(2, "w"), Each(0u));
}

TEST_F(DeviceDeltaTest, AChainIsAsLongAsTheOptionAllows) {
  AddWeights("w", kElements);
  for (uint64_t step = 1; step <= 9; ++step) {
    Save(step, WithDeltas());
    EXPECT_THAT(DeltasOf(step, "w"), Each((step - 1) % 4)) << step;
    ExpectStored(step);
    Train("w");
  }
}

TEST_F(DeviceDeltaTest, ElementsOfEverySizeAreCompared) {
  const std::vector<std::pair<core::DType, uint64_t>> kinds{{core::DType::kUInt8, 1},
                                                            {core::DType::kFloat16, 2},
                                                            {core::DType::kFloat32, 4},
                                                            {core::DType::kInt64, 8},
                                                            {core::DType::kComplex128, 16}};
  const auto name = [](core::DType dtype) { return std::string(schema::DTypeName(dtype)); };
  for (const auto& [dtype, bytes] : kinds) {
    const uint64_t count = 20 * kPageBytes / bytes + 33;
    Add(name(dtype), count * bytes, {.dtype = dtype, .shape = {count}});
  }
  for (uint64_t step = 1; step <= 3; ++step) {
    Save(step, WithDeltas());
    ExpectStored(step);
    for (const auto& [dtype, bytes] : kinds) {
      EXPECT_THAT(DeltasOf(step, name(dtype)), Each(step - 1));
      Train(name(dtype), 500);
    }
  }
}

TEST_F(DeviceDeltaTest, TensorsAtOddAddressesAreCompared) {
  std::vector<std::byte> bytes = RandomBytes(20 * kPageBytes + 1, 3);
  DeviceBytes storage(bytes);
  core::StateDict state;
  state.root().Tensor("odd", {.dtype = core::DType::kUInt8,
                              .shape = {20 * kPageBytes},
                              .data = storage.data() + 1,
                              .device = 0});
  for (uint64_t step = 1; step <= 3; ++step) {
    CAIRN_ASSERT_OK(store_->Save(step, state, WithDeltas()));
    EXPECT_THAT(DeltasOf(step, "odd"), Each(step - 1));
    const std::span<const std::byte> expected = std::span(bytes).subspan(1);
    EXPECT_EQ(ChunksOf(step, "odd").front().digest, kv::PayloadDigest(expected.first(kChunkBytes)));
    bytes[1 + step * 1000] ^= std::byte{1};
    bytes[1 + 17 * kPageBytes + step] ^= std::byte{1};
    storage.Write(bytes);
  }
}

TEST_F(DeviceDeltaTest, AsynchronousSavesKeepWhatWasThere) {
  AddModel();
  AddWeights("w", kElements);
  core::AsyncSaver saver(store_.get());
  cudaStream_t training = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&training, cudaStreamNonBlocking), cudaSuccess);
  uint64_t step = 0;
  for (const bool snapshot : {false, true}) {
    for (int round = 0; round < 4; ++round) {
      core::SaveOptions options = WithDeltas();
      options.streams = {{.device = 0, .stream = training}};
      options.device_snapshot = snapshot;
      Train("w");
      CAIRN_ASSERT_OK_AND_ASSIGN(const core::SaveHandle handle,
                                 saver.Save(++step, State(), options));
      if (!snapshot) {
        CAIRN_ASSERT_OK(handle.MakeStreamWait({.device = 0, .stream = training}));
      }
      // The training continues with the same tensors as soon as its stream allows it.
      for (DeviceBytes& storage : storages_) {
        ASSERT_EQ(cudaMemsetAsync(storage.data(), 7, storage.length_bytes(), training),
                  cudaSuccess);
      }
      CAIRN_ASSERT_OK_AND_ASSIGN(const core::SaveReport report, handle.Wait());
      ASSERT_EQ(cudaStreamSynchronize(training), cudaSuccess);
      ExpectStored(step);
      if (step > 1) {
        EXPECT_LT(report.written_bytes,
                  step % 4 == 1 ? LengthBytes("w") * 2 : LengthBytes("w") / 20);
      }
      for (size_t i = 0; i < host_.size(); ++i) storages_[i].Write(host_[i]);
    }
  }
  ASSERT_EQ(cudaStreamDestroy(training), cudaSuccess);
}

TEST_F(DeviceDeltaTest, ASmallBudgetIsForTheTensorsThatChange) {
  AddWeights("a", kElements);
  AddWeights("b", kElements);
  const core::SaveOptions options = WithDeltas(LengthBytes("a") * 3 / 2);  // for one of them
  Save(1, options);
  Train("a");
  Train("b");
  Save(2, options);
  EXPECT_THAT(DeltasOf(2, "a"), Each(1u));
  EXPECT_THAT(DeltasOf(2, "b"), Each(0u));
  ExpectStored(2);
  // From now on `a` is frozen.
  Train("b");
  Save(3, options);
  Train("b");
  Save(4, options);
  EXPECT_THAT(DeltasOf(4, "b"), Each(1u));
  EXPECT_THAT(DeltasOf(4, "a"), Each(1u));  // those of step 2
  ExpectStored(4);
  // A smaller budget takes the copy away.
  Train("b");
  Save(5, WithDeltas(LengthBytes("a") / 2));
  EXPECT_THAT(DeltasOf(5, "b"), Each(0u));
  ExpectStored(5);
}

TEST_F(DeviceDeltaTest, TensorsThatChangeCompletelyHaveNoCopyForSomeSaves) {
  AddWeights("w", kElements);
  const auto replace = [&](uint64_t seed) { Write("w", 0, RandomBytes(LengthBytes("w"), seed)); };
  Save(1, WithDeltas());
  replace(1001);
  EXPECT_EQ(Save(2, WithDeltas()).written_bytes, LengthBytes("w"));
  ExpectStored(2);
  uint64_t step = 3;
  for (; step < 30; ++step) {
    Train("w");
    Save(step, WithDeltas());
    if (DeltasOf(step, "w").front() > 0) break;
  }
  // 16 saves without a copy, then one that makes it, then one that uses it.
  EXPECT_EQ(step, 3u + 17u);
  ExpectStored(step);
}

TEST_F(DeviceDeltaTest, UnchangedAndMovedBasesAreUsedOrNot) {
  AddWeights("w", kElements);
  Save(1, WithDeltas());
  Save(2, WithDeltas());  // unchanged: the copy remains
  Train("w");
  Save(3, WithDeltas());
  EXPECT_THAT(DeltasOf(3, "w"), Each(1u));
  // Another base than the step that the copy contains.
  Train("w");
  core::SaveOptions options = WithDeltas();
  options.base_step = 1;
  Save(4, options);
  EXPECT_THAT(DeltasOf(4, "w"), Each(0u));
  ExpectStored(4);
  Train("w");
  Save(5, WithDeltas());
  EXPECT_THAT(DeltasOf(5, "w"), Each(1u));
  // A new process has no copies.
  OpenStore();
  Train("w");
  Save(6, WithDeltas());
  EXPECT_THAT(DeltasOf(6, "w"), Each(0u));
  Train("w");
  Save(7, WithDeltas());
  EXPECT_THAT(DeltasOf(7, "w"), Each(1u));
  ExpectStored(7);
}

TEST_F(DeviceDeltaTest, EqualChunksMayBeSharedAsWell) {
  AddWeights("w", kElements);
  AddWeights("x", kElements);
  core::SaveOptions options = WithDeltas();
  options.share_equal = true;
  for (uint64_t step = 1; step <= 3; ++step) {
    Save(step, options);
    ExpectStored(step);
    Train("w");
    Write("x", 0, std::vector<std::byte>(host_[tensors_.at("w").storage]));
  }
}

}  // namespace
}  // namespace cairn::cuda
