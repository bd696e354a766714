// Statistics in steps of tensors in device memory: those of the bytes, in every kind of save.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/async_save.h"
#include "core/save/internal/chunk_statistics.h"
#include "core/step_part.h"
#include "tests/cuda/device_delta_fixture.h"

namespace cairn::cuda {
namespace {

using kv::kPageBytes;
using testing::IsOk;
using testing::RandomBytes;

class DeviceStatisticsTest : public testing::DeviceDeltaTest {
 protected:
  void AddTensors() {
    AddWeights("w", 40 * kPageBytes / 2 + 777);
    Add("f32", 9 * kPageBytes + 44,
        {.dtype = core::DType::kFloat32, .shape = {9 * kPageBytes / 4 + 11}});
    Add("small", 12, {.dtype = core::DType::kInt32, .shape = {3}});
    Add("scalar", 8, {.dtype = core::DType::kInt64, .shape = {}});
    Add("strided", 1 << 20,
        {.dtype = core::DType::kFloat16, .shape = {500, 700}, .strides = {1, 500}});
    Add("empty", 16, {.dtype = core::DType::kFloat32, .shape = {0, 7}});
    // Many pages of a strided tensor, more than are packed at a time.
    Add("columns", 40 << 20,
        {.dtype = core::DType::kUInt8, .shape = {20, 1 << 20}, .strides = {1, 20}});
  }
  static core::SaveOptions WithStatistics() {
    return {.statistics = true, .chunk_bytes = kChunkBytes};
  }

  // Compares the statistics of every chunk with those of its bytes on the host.
  void ExpectStatistics(uint64_t step) {
    for (const auto& [name, held] : tensors_) {
      SCOPED_TRACE(name);
      const std::vector<std::byte> bytes = Expected(name);
      uint64_t at = 0;
      for (const core::ChunkInfo& chunk : ChunksOf(step, name)) {
        ASSERT_TRUE(chunk.statistics.has_value());
        core::internal::ChunkStatisticsAccumulator accumulator(held.view.dtype);
        const auto part = std::span(bytes).subspan(at, chunk.length_bytes());
        accumulator.Add(part, part.data());
        const kv::ChunkStatistics expected = accumulator.Finish();
        EXPECT_EQ(chunk.statistics->zeros, expected.zeros);
        EXPECT_EQ(chunk.statistics->nans, expected.nans);
        EXPECT_EQ(chunk.statistics->infs, expected.infs);
        if (std::isnan(expected.min)) continue;
        EXPECT_EQ(chunk.statistics->min, expected.min);
        EXPECT_EQ(chunk.statistics->max, expected.max);
        at += chunk.length_bytes();
      }
      EXPECT_EQ(at, bytes.size());
    }
  }
};

TEST_F(DeviceStatisticsTest, AreThoseOfTheBytes) {
  AddTensors();
  Save(1, WithStatistics());
  ExpectStatistics(1);
  Train("w");
  Write("strided", 77, RandomBytes(5, 3));
  Save(2, WithStatistics());
  ExpectStatistics(2);
  Save(3, WithStatistics());  // nothing changed
  ExpectStatistics(3);
}

TEST_F(DeviceStatisticsTest, AreAddedToStepsWithoutThem) {
  AddTensors();
  Save(1, {.chunk_bytes = kChunkBytes});
  EXPECT_FALSE(ChunksOf(1, "w").front().statistics);
  const core::SaveReport report = Save(2, WithStatistics());
  EXPECT_EQ(report.written_bytes, 0u);
  ExpectStatistics(2);
  OpenStore();
  Train("w");
  Save(3, WithStatistics());  // compares with the digests that are stored
  ExpectStatistics(3);
}

TEST_F(DeviceStatisticsTest, AreComputedWithDeltas) {
  AddTensors();
  core::SaveOptions options = WithDeltas();
  options.statistics = true;
  for (uint64_t step = 1; step <= 3; ++step) {
    Save(step, options);
    EXPECT_EQ(DeltasOf(step, "w").front(), step - 1);
    ExpectStatistics(step);
    Train("w");
  }
}

TEST_F(DeviceStatisticsTest, AreThoseOfTheMomentOfAnAsynchronousSave) {
  AddTensors();
  core::AsyncSaver saver(store_.get());
  uint64_t step = 0;
  for (const bool snapshot : {false, true}) {
    for (int round = 0; round < 2; ++round) {
      core::SaveOptions options = WithStatistics();
      options.device_snapshot = snapshot;
      Train("w");
      CAIRN_ASSERT_OK_AND_ASSIGN(const core::SaveHandle handle,
                                 saver.Save(++step, State(), options));
      handle.WaitStaged();
      for (testing::DeviceBytes& storage : storages_) {
        storage.Write(std::vector<std::byte>(storage.length_bytes(), std::byte{7}));
      }
      CAIRN_ASSERT_OK(handle.Wait());
      ExpectStatistics(step);
      ExpectStored(step);
      for (size_t i = 0; i < host_.size(); ++i) storages_[i].Write(host_[i]);
    }
  }
}

TEST_F(DeviceStatisticsTest, AreInStepsThatAreWrittenInParts) {
  AddTensors();
  CAIRN_ASSERT_OK_AND_ASSIGN(const core::StepTicket ticket,
                             core::StepPart::OpenSession(*store_, 1, 1));
  CAIRN_ASSERT_OK_AND_ASSIGN(auto part,
                             core::StepPart::Begin(*store_, ticket, 0, WithStatistics()));
  for (const auto& [name, held] : tensors_) {
    core::StateDict portion;
    portion.root().Tensor(name, held.view);
    CAIRN_ASSERT_OK(part->Add(std::move(portion)));
  }
  CAIRN_ASSERT_OK(part->Commit({}));
  ExpectStatistics(1);
}

}  // namespace
}  // namespace cairn::cuda
