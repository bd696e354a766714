// Cases that work on a store: small tensors, which measure the cost per tensor; large tensors,
// which measure the passes over the bytes; opening.

#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "bench/regression/counting.h"
#include "core/checkpoint_store.h"

namespace cairn::bench {
namespace {

constexpr uint64_t kTensorFloats = 64;

// Uses threads and the page cache, so that valgrind and the file system do not affect the counts.
kv::StoreOptions CountedOptions() {
  kv::StoreOptions options;
  options.io = {.direct = false, .uring = false};
  return options;
}

/// `count` tensors of `floats` elements each.
class Tensors {
 public:
  Tensors(uint64_t count, uint64_t floats) : memory_(count * floats), floats_(floats) {
    for (size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<float>(i);
    auto root = state_.root();
    for (uint64_t i = 0; i < count; ++i) {
      names_.push_back(fmt::format("model.layers.{:05}.norm.weight", i));
      root.Tensor(names_.back(), {core::DType::kFloat32, {floats}, {}, data(i)});
    }
  }

  const core::StateDict& state() const { return state_; }
  std::vector<core::LoadRequest> Requests() {
    std::vector<core::LoadRequest> requests;
    for (uint64_t i = 0; i < names_.size(); ++i) {
      requests.push_back({names_[i],
                          core::WholeBox(core::Shape{floats_}),
                          {core::DType::kFloat32, {floats_}, {}, data(i)}});
    }
    return requests;
  }

 private:
  std::byte* data(uint64_t i) { return reinterpret_cast<std::byte*>(&memory_[i * floats_]); }

  std::vector<float> memory_;
  uint64_t floats_;
  std::vector<std::string> names_;
  core::StateDict state_;
};

/// Names of the measurements of one round.
struct Names {
  const char* unit = nullptr;
  const char* save = nullptr;
  const char* save_unchanged = nullptr;
  const char* load = nullptr;
};

/// Saves the tensors, saves them again unchanged, and loads them: three measurements.
Result<void> CountRound(const std::string& directory, uint64_t units, Tensors& tensors,
                        const Names& names) {
  CAIRN_TRY_ASSIGN(const auto store,
                   core::CheckpointStore::Open(directory, kv::OpenMode::kWrite, CountedOptions()));
  CAIRN_TRY(Count(names.save, names.unit, units, [&] { return store->Save(1, tensors.state()); }));
  CAIRN_TRY(Count(names.save_unchanged, names.unit, units,
                  [&] { return store->Save(2, tensors.state()); }));
  const std::vector<core::LoadRequest> requests = tensors.Requests();
  CAIRN_TRY_ASSIGN(const auto steps, store->Steps());
  CAIRN_TRY(
      Count(names.load, names.unit, units, [&] { return store->Load(steps.front(), requests); }));
  return store->Close();
}

/// Runs one round that is not counted, in which symbols are resolved and lazy objects are created.
Result<void> WarmUp(const std::string& directory) {
  Tensors tensors(10, kTensorFloats);
  CAIRN_TRY_ASSIGN(const auto store,
                   core::CheckpointStore::Open(directory, kv::OpenMode::kWrite, CountedOptions()));
  CAIRN_TRY(store->Save(1, tensors.state()));
  CAIRN_TRY(store->Save(2, tensors.state()));
  CAIRN_TRY_ASSIGN(const auto steps, store->Steps());
  CAIRN_TRY(store->Load(steps.front(), tensors.Requests()));
  return store->Close();
}

}  // namespace

Result<void> CountSmallTensors(const std::string& directory) {
  constexpr Names kNames = {.unit = "tensor",
                            .save = "save_small",
                            .save_unchanged = "save_unchanged_small",
                            .load = "load_small"};
  CAIRN_TRY(WarmUp(directory + "/warm"));
  for (const uint64_t count : {500, 2500}) {
    Tensors tensors(count, kTensorFloats);
    CAIRN_TRY(CountRound(fmt::format("{}/{}", directory, count), count, tensors, kNames));
  }
  return {};
}

Result<void> CountPayload(const std::string& directory) {
  constexpr Names kNames = {.unit = "byte",
                            .save = "save_payload",
                            .save_unchanged = "save_unchanged_payload",
                            .load = "load_payload"};
  CAIRN_TRY(WarmUp(directory + "/warm"));
  for (const uint64_t size_bytes : {8 << 20, 40 << 20}) {
    Tensors tensors(1, size_bytes / sizeof(float));
    CAIRN_TRY(CountRound(fmt::format("{}/{}", directory, size_bytes), size_bytes, tensors, kNames));
  }
  return {};
}

Result<void> CountOpen(const std::string& directory) {
  {
    Tensors tensors(2000, kTensorFloats);
    CAIRN_TRY_ASSIGN(const auto store, core::CheckpointStore::Open(directory, kv::OpenMode::kWrite,
                                                                   CountedOptions()));
    CAIRN_TRY(store->Save(1, tensors.state()));
    CAIRN_TRY(store->Close());
  }
  const auto open_and_find = [&]() -> Result<core::TensorInfo> {
    CAIRN_TRY_ASSIGN(const auto store,
                     core::CheckpointStore::Open(directory, kv::OpenMode::kRead, CountedOptions()));
    CAIRN_TRY_ASSIGN(const auto steps, store->Steps());
    return store->FindTensor(steps.front(), "model.layers.00000.norm.weight");
  };
  CAIRN_TRY(open_and_find());
  CAIRN_TRY(Count("open_and_find", "open", 1, open_and_find));
  return {};
}

}  // namespace cairn::bench
