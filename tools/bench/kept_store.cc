// Stores of many chunks or steps, which take long to create and are kept for later runs.

#include "tools/bench/kept_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <vector>

#include "kv/read/snapshot.h"
#include "tools/common/progress.h"

namespace cairn::tools {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kChunkBytes = 64;
constexpr uint64_t kChunksPerTensor = 100;
constexpr uint64_t kRowFloats = kChunkBytes / sizeof(float);
constexpr uint64_t kTensorFloats = kChunksPerTensor * kRowFloats;

std::string KeyOf(uint64_t tensor) { return fmt::format("layer.{:06}.weight", tensor); }

/// Tensors of 100 rows, with one chunk per row, until there are `chunks` chunks.
core::StateDict LargeState(const std::vector<float>& values, uint64_t chunks) {
  core::StateDict state;
  auto root = state.root();
  uint64_t left = chunks;
  for (uint64_t i = 0; left > 0; ++i) {
    const uint64_t rows = std::min(left, kChunksPerTensor);
    left -= rows;
    root.Tensor(KeyOf(i), {core::DType::kFloat32,
                           {rows, kRowFloats},
                           {},
                           reinterpret_cast<const std::byte*>(values.data() + i * kTensorFloats)});
  }
  return state;
}

/// Saves one of the small steps that precede the large one.
Result<void> SaveSmallStep(core::CheckpointStore& store, uint64_t step) {
  const std::vector<uint64_t> values(kChunkBytes / sizeof(uint64_t), step);
  core::StateDict state;
  state.root().Tensor("small", {core::DType::kUInt64,
                                {values.size()},
                                {},
                                reinterpret_cast<const std::byte*>(values.data())});
  CAIRN_TRY(store.Save(step, state, {}));
  return {};
}

Result<void> MakeStore(const std::string& directory, const KeptStore& wanted) {
  const uint64_t tensors = (wanted.chunks + kChunksPerTensor - 1) / kChunksPerTensor;
  std::vector<float> values(tensors * kTensorFloats);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  ProgressLine progress("creating the store");
  const auto large_step = progress.callback();
  // Nobody reads what the commits replace, so it can be removed at once.
  CAIRN_TRY_ASSIGN(const auto store,
                   core::CheckpointStore::Open(directory, kv::OpenMode::kWrite,
                                               {.grace = std::chrono::milliseconds(0)}));
  const auto small_steps = progress.callback("creating steps", ProgressUnit::kCount);
  for (uint64_t step = 1; step <= wanted.small_steps; ++step) {
    CAIRN_TRY(SaveSmallStep(*store, step));
    if (!small_steps(step, wanted.small_steps)) {
      return Fail(ErrorCode::kCancelled, "cancelled");
    }
  }
  CAIRN_TRY(
      store->Save(wanted.large_step(), LargeState(values, wanted.chunks),
                  {.incremental = false, .chunk_bytes = kChunkBytes, .progress = large_step}));
  return store->Close();
}

bool IsWanted(const std::string& directory, const KeptStore& wanted) {
  const auto store = core::CheckpointStore::Open(directory, kv::OpenMode::kRead);
  if (!store) return false;
  const auto snapshot = (*store)->kv().Latest();
  if (!snapshot) return false;
  const auto step = (*snapshot)->FindStep(wanted.large_step());
  return step && step->chunk_count == wanted.chunks;
}

}  // namespace

std::string FirstKey() { return KeyOf(0); }

Result<std::string> FindOrMakeStore(const BenchOptions& options, const KeptStore& wanted) {
  const std::string directory = (fs::path(options.directory) / wanted.name).string();
  if (IsWanted(directory, wanted)) return directory;
  if (fs::exists(directory)) {
    return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                      .message = "exists but is not a store that this benchmark created; remove it",
                      .file = directory});
  }
  CAIRN_TRY(MakeStore(directory, wanted));
  return directory;
}

}  // namespace cairn::tools
