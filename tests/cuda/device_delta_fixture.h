#pragma once
/// Tensors in device memory of which few elements change between saves.

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/save/save_options.h"
#include "core/step/contents.h"
#include "kv/digest.h"
#include "tests/cuda/device_store_fixture.h"

namespace cairn::testing {

class DeviceDeltaTest : public DeviceStoreTest {
 protected:
  static constexpr uint64_t kChunkBytes = 16 * kv::kPageBytes;
  static core::SaveOptions WithDeltas(uint64_t budget_bytes = 1 << 30) {
    return {.max_deltas = 3, .device_delta_bytes = budget_bytes, .chunk_bytes = kChunkBytes};
  }

  void AddWeights(const std::string& name, uint64_t elements) {
    Add(name, 2 * elements, {.dtype = core::DType::kBFloat16, .shape = {elements}});
  }
  /// About one of `distance` elements of 2 bytes changes by one.
  void Train(const std::string& name, uint64_t distance = 100) {
    std::vector<std::byte> bytes = host_[tensors_.at(name).storage];
    for (uint64_t at = random_.Between(0, distance); at < bytes.size() / 2;
         at += random_.Between(1, 2 * distance)) {
      bytes[2 * at] ^= std::byte{1};
    }
    Write(name, 0, bytes);
  }
  uint64_t LengthBytes(const std::string& name) const {
    return host_[tensors_.at(name).storage].size();
  }

  core::SaveReport Save(uint64_t step, const core::SaveOptions& options) {
    auto report = store_->Save(step, State(), options);
    EXPECT_TRUE(IsOk(report));
    return report ? *report : core::SaveReport();
  }
  std::vector<core::ChunkInfo> ChunksOf(uint64_t step, const std::string& name) {
    const auto snapshot = store_->kv().Latest();
    EXPECT_TRUE(IsOk(snapshot));
    const auto info = (*snapshot)->FindStep(step);
    EXPECT_TRUE(IsOk(info));
    auto chunks = store_->Chunks(*info, name);
    EXPECT_TRUE(IsOk(chunks));
    return chunks ? *chunks : std::vector<core::ChunkInfo>();
  }
  /// The deltas of each chunk.
  std::vector<size_t> DeltasOf(uint64_t step, const std::string& name) {
    std::vector<size_t> counts;
    for (const core::ChunkInfo& chunk : ChunksOf(step, name)) counts.push_back(chunk.deltas.size());
    return counts;
  }

  SeededRandom random_{17};
};

}  // namespace cairn::testing
