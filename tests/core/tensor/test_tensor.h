#pragma once
/// Tensors that own their memory, and stores that contain them.

#include <gmock/gmock.h>

#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/async_save.h"
#include "core/checkpoint_store.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"
#include "tests/support/seeded_random.h"

namespace cairn::core {

/// A row-major tensor with a pattern in which neighboring bytes differ.
struct TestTensor {
  TestTensor(DType dtype_in, Shape shape_in, uint8_t seed = 1)
      : dtype(dtype_in), shape(std::move(shape_in)), bytes(*TensorBytes(dtype, shape)) {
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    for (std::byte& b : bytes) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      b = static_cast<std::byte>(state >> 56);
    }
  }

  TensorView view() const { return {dtype, shape, {}, bytes.data()}; }
  TensorTarget target() { return {dtype, shape, {}, bytes.data()}; }

  DType dtype;
  Shape shape;
  std::vector<std::byte> bytes;
};

/// A state with these tensors under its root.
inline StateDict StateOf(const std::vector<std::pair<std::string, TensorView>>& tensors) {
  StateDict state;
  for (const auto& [fqn, view] : tensors) state.root().Tensor(fqn, view);
  return state;
}

/// A state of the tensors "t0", "t1" and so on.
inline StateDict NumberedState(const std::vector<TestTensor>& tensors) {
  StateDict state;
  for (size_t i = 0; i < tensors.size(); ++i) {
    state.root().Tensor("t" + std::to_string(i), tensors[i].view());
  }
  return state;
}

inline Result<SaveReport> SaveAndWait(AsyncSaver& saver, uint64_t step, const StateDict& state,
                                      const SaveOptions& options = {}) {
  CAIRN_TRY_ASSIGN(const SaveHandle handle, saver.Save(step, state, options));
  return handle.Wait();
}

inline LoadRequest WholeRequest(const std::string& fqn, TestTensor& into) {
  return {.fqn = fqn, .box = WholeBox(into.shape), .target = into.target()};
}

/// Changes a byte of a file.
inline void FlipByte(const std::string& path, uint64_t offset_bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset_bytes));
  const auto changed = static_cast<char>(file.get() ^ 0x10);
  file.seekp(static_cast<std::streamoff>(offset_bytes));
  file.put(changed);
  EXPECT_TRUE(file.good()) << path;
}

/// A store in a temporary directory, open for writing.
class StoreTest : public ::testing::Test {
 protected:
  void SetUp() override { Reopen(); }

  void Reopen(kv::OpenMode mode = kv::OpenMode::kWrite) {
    store.reset();
    CAIRN_ASSERT_OK_AND_ASSIGN(store, CheckpointStore::Open(directory.path() + "/store", mode));
  }

  /// Saves `state` as `step` and returns the report; after a failure, an empty one.
  SaveReport Save(uint64_t step, const StateDict& state, const SaveOptions& options = {}) {
    auto report = store->Save(step, state, options);
    EXPECT_TRUE(testing::IsOk(report));
    return report.value_or(SaveReport{});
  }

  kv::StepInfo Step(uint64_t step) {
    const auto steps = store->Steps();
    EXPECT_TRUE(testing::IsOk(steps));
    for (const kv::StepInfo& info : steps.value_or(std::vector<kv::StepInfo>{})) {
      if (info.step == step) return info;
    }
    ADD_FAILURE() << "no step " << step;
    return {};
  }

  Result<LoadReport> Load(uint64_t step, const std::vector<LoadRequest>& requests) {
    return store->Load(Step(step), requests);
  }
  /// Loads the tensor and returns its row-major bytes; after a failure, none.
  std::vector<std::byte> LoadBytes(uint64_t step, const std::string& fqn) {
    const auto tensor = store->FindTensor(Step(step), fqn);
    EXPECT_TRUE(testing::IsOk(tensor));
    if (!tensor) return {};
    TestTensor target(tensor->dtype, tensor->shape, 77);
    EXPECT_TRUE(testing::IsOk(Load(step, {WholeRequest(fqn, target)})));
    return target.bytes;
  }

  /// Returns the chunks of the tensor; after a failure, none.
  std::vector<ChunkInfo> Chunks(uint64_t step, const std::string& fqn = "w") {
    auto chunks = store->Chunks(Step(step), fqn);
    EXPECT_TRUE(testing::IsOk(chunks));
    return chunks.value_or(std::vector<ChunkInfo>());
  }
  /// Returns the chunk of a tensor that has one.
  ChunkInfo OnlyChunk(uint64_t step, const std::string& fqn = "w") {
    const std::vector<ChunkInfo> chunks = Chunks(step, fqn);
    EXPECT_EQ(chunks.size(), 1u);
    return chunks.empty() ? ChunkInfo() : chunks.front();
  }

  /// Returns the file that contains the extent.
  std::string FileOf(const kv::Extent& extent) {
    const auto snapshot = store->kv().Latest();
    EXPECT_TRUE(testing::IsOk(snapshot));
    const auto segment = (*snapshot)->FindSegment(extent.segment_id);
    EXPECT_TRUE(testing::IsOk(segment));
    return store->kv().directory() + "/segments/" + segment->name;
  }

  std::vector<Error> VerifyAll(std::optional<uint64_t> step = {}) {
    std::vector<Error> found;
    EXPECT_TRUE(testing::IsOk(
        store->Verify(step, [&](const kv::Damage& damage) { found.push_back(damage.error); })));
    return found;
  }

  /// Saves tensors by name, and keeps their bytes for ExpectAllSteps.
  SaveReport SaveAndKeep(uint64_t step, const std::map<std::string, const TestTensor*>& tensors,
                         const SaveOptions& options = {}) {
    StateDict state;
    for (const auto& [fqn, tensor] : tensors) {
      state.root().Tensor(fqn, tensor->view());
      kept[step][fqn] = tensor->bytes;
    }
    return Save(step, state, options);
  }
  /// Deletes steps, which ExpectAllSteps does not expect any more.
  void DeleteKept(const std::vector<uint64_t>& steps) {
    CAIRN_ASSERT_OK(store->Delete(steps));
    for (const uint64_t step : steps) kept.erase(step);
  }
  /// Loads what was kept, and verifies the store.
  void ExpectAllSteps() {
    for (const auto& [step, tensors] : kept) {
      for (const auto& [fqn, bytes] : tensors) {
        EXPECT_TRUE(LoadBytes(step, fqn) == bytes) << fqn << " of step " << step;
      }
    }
    EXPECT_THAT(VerifyAll(), ::testing::IsEmpty());
  }

  std::map<uint64_t, std::map<std::string, std::vector<std::byte>>> kept;
  testing::ScopedTempDir directory;
  std::unique_ptr<CheckpointStore> store;
};

}  // namespace cairn::core
