// kv-bench save, load, partial, incremental and digest: one operation on a model, by Cairn alone.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/checkpoint_store.h"
#include "kv/base/digest.h"
#include "kv/base/div.h"
#include "kv/io/worker_pool.h"
#include "kv/read/snapshot.h"
#include "tools/bench/measure.h"
#include "tools/bench/verbs.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"

namespace cairn::tools {
namespace {

constexpr uint64_t kMinModelBytes = 1 << 20;
constexpr uint64_t kTensorBytes = 4 << 20;
constexpr uint64_t kStride = 100;           // partial, incremental: every 100th tensor
constexpr uint64_t kDigestBytes = 4 << 20;  // what a thread digests at a time

/// Float tensors of equal size, at least 100, whose bytes are noise. Their memory is resident, so
/// that a measurement does not count it.
class Model {
 public:
  /// kInvalidArgument: less than a MiB.
  static Result<Model> Make(uint64_t bytes) {
    if (bytes < kMinModelBytes) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("--bytes {} is too small for a model; give at least 1MiB", bytes));
    }
    Model model(std::max(kStride, bytes / kTensorBytes), bytes);
    kv::ParallelFor(model.count_, [&](size_t i, size_t) { model.Fill(i, 1); });
    return model;
  }

  uint64_t count() const { return count_; }
  uint64_t tensor_bytes() const { return tensor_bytes_; }
  std::span<const std::byte> bytes() const { return memory_; }

  /// Fills a tensor with noise that depends on its number and on `version`.
  void Fill(size_t tensor, uint64_t version) { FillNoise(BytesOf(tensor), tensor, version); }
  void Clear() { std::ranges::fill(memory_, std::byte{0}); }

  /// Returns whether every `stride`-th tensor has version 1.
  bool IsLoaded(uint64_t stride) {
    std::atomic<bool> loaded = true;
    kv::ParallelFor(DivCeil(count_, stride), [&](size_t i, size_t) {
      std::vector<std::byte> expected(tensor_bytes_);
      FillNoise(expected, i * stride, 1);
      if (!std::ranges::equal(expected, BytesOf(i * stride))) loaded = false;
    });
    return loaded;
  }

  core::StateDict State() {
    core::StateDict state;
    auto root = state.root();
    for (size_t i = 0; i < count_; ++i) {
      root.Tensor(Fqn(i), {core::DType::kFloat32, Shape(), {}, BytesOf(i).data()});
    }
    return state;
  }

  /// Requests every `stride`-th tensor.
  std::vector<core::LoadRequest> Requests(uint64_t stride) {
    std::vector<core::LoadRequest> requests;
    for (size_t i = 0; i < count_; i += stride) {
      requests.push_back(core::RowMajorRequest(Fqn(i), core::DType::kFloat32,
                                               core::WholeBox(Shape()), BytesOf(i).data()));
    }
    return requests;
  }

 private:
  Model(uint64_t count, uint64_t bytes)
      : count_(count),
        tensor_bytes_(bytes / count / sizeof(float) * sizeof(float)),
        memory_(count * tensor_bytes_) {}

  static std::string Fqn(size_t tensor) { return fmt::format("layers.{:06}.weight", tensor); }
  static void FillNoise(std::span<std::byte> target, size_t tensor, uint64_t version) {
    std::mt19937_64 random(version << 32 | tensor);
    for (uint64_t at = 0; at < target.size(); at += sizeof(uint64_t)) {
      const uint64_t word = random();
      std::memcpy(target.data() + at, &word, std::min(sizeof(word), target.size() - at));
    }
  }
  core::Shape Shape() const { return {tensor_bytes_ / sizeof(float)}; }
  std::span<std::byte> BytesOf(size_t tensor) {
    return std::span(memory_).subspan(tensor * tensor_bytes_, tensor_bytes_);
  }

  uint64_t count_;
  uint64_t tensor_bytes_;
  std::vector<std::byte> memory_;
};

Result<std::unique_ptr<core::CheckpointStore>> OpenForWriting(const ScratchDirectory& scratch) {
  return core::CheckpointStore::Open(scratch.path(), kv::OpenMode::kWrite,
                                     {.grace = std::chrono::milliseconds(0)});
}

/// Saves the model durably as a step, and returns the row of it.
Result<BenchRow> SaveOnce(core::CheckpointStore& store, Model& model, uint64_t step) {
  const core::StateDict state = model.State();
  ProgressLine progress("saving");
  const Meter meter;
  CAIRN_TRY_ASSIGN(const core::SaveReport saved,
                   store.Save(step, state, {.progress = progress.callback()}));
  BenchRow row{.bytes = saved.logical_bytes, .measured = meter.Stop()};
  row.extra = {{"keys", model.count()},
               {"chunks", saved.chunks},
               {"chunks_reused", saved.chunks_reused},
               {"payload_written_bytes", saved.written_bytes},
               {"durable", true}};
  row.note = fmt::format("durable, {} keys, {} written", GroupedCount(model.count()),
                         HumanBytes(saved.written_bytes));
  return row;
}

/// Saves a model, and loads every `stride`-th tensor `repeat` times, from the disk.
Result<void> BenchLoads(const BenchOptions& options, const char* what, uint64_t stride,
                        BenchReport& report) {
  const ScratchDirectory scratch(options.directory, what);
  CAIRN_TRY_ASSIGN(Model model, Model::Make(options.bytes));
  {
    CAIRN_TRY_ASSIGN(const auto store, OpenForWriting(scratch));
    CAIRN_TRY(SaveOnce(*store, model, 1));
    CAIRN_TRY(store->Close());
  }
  const std::vector<core::LoadRequest> requests = model.Requests(stride);
  for (uint64_t run = 1; run <= options.repeat; ++run) {
    model.Clear();
    CAIRN_TRY_ASSIGN(const auto store,
                     core::CheckpointStore::Open(scratch.path(), kv::OpenMode::kRead));
    CAIRN_TRY(EvictFromPageCache(scratch.path()));
    CAIRN_TRY_ASSIGN(const auto snapshot, store->kv().Latest());
    CAIRN_TRY_ASSIGN(const kv::StepInfo step, snapshot->FindStep(1));
    ProgressLine progress("loading");
    const Meter meter;
    CAIRN_TRY_ASSIGN(const core::LoadReport loaded,
                     store->Load(step, requests, progress.callback()));
    BenchRow row{.what = what, .run = run, .measured = meter.Stop()};
    row.bytes = requests.size() * model.tensor_bytes();
    row.extra = {{"keys", requests.size()}, {"bytes_read", loaded.bytes_read}, {"cold", true}};
    row.note = fmt::format("cold, {} keys", GroupedCount(requests.size()));
    report.Add(row);
    if (!model.IsLoaded(stride)) {
      return Fail(ErrorCode::kDataLoss, "loaded bytes differ from those that were saved");
    }
  }
  return {};
}

}  // namespace

Result<void> BenchSave(const BenchOptions& options, BenchReport& report) {
  CAIRN_TRY_ASSIGN(Model model, Model::Make(options.bytes));
  for (uint64_t run = 1; run <= options.repeat; ++run) {
    const ScratchDirectory scratch(options.directory, "save");
    CAIRN_TRY_ASSIGN(const auto store, OpenForWriting(scratch));
    CAIRN_TRY_ASSIGN(BenchRow row, SaveOnce(*store, model, 1));
    row.what = "save", row.run = run;
    report.Add(row);
    CAIRN_TRY(store->Close());
  }
  return {};
}

Result<void> BenchIncremental(const BenchOptions& options, BenchReport& report) {
  const ScratchDirectory scratch(options.directory, "incremental");
  CAIRN_TRY_ASSIGN(Model model, Model::Make(options.bytes));
  CAIRN_TRY_ASSIGN(const auto store, OpenForWriting(scratch));
  uint64_t step = 1;
  CAIRN_TRY(SaveOnce(*store, model, step));
  for (uint64_t run = 1; run <= options.repeat; ++run) {
    for (const bool changes : {false, true}) {
      uint64_t changed = 0;
      for (uint64_t i = 0; changes && i < model.count(); i += kStride, ++changed) {
        model.Fill(i, 1 + run);
      }
      CAIRN_TRY_ASSIGN(BenchRow row, SaveOnce(*store, model, ++step));
      row.what = changes ? "1 % changed" : "nothing changed", row.run = run;
      row.extra["changed_keys"] = changed;
      report.Add(row);
    }
  }
  return store->Close();
}

Result<void> BenchLoad(const BenchOptions& options, BenchReport& report) {
  return BenchLoads(options, "load", 1, report);
}

Result<void> BenchPartial(const BenchOptions& options, BenchReport& report) {
  return BenchLoads(options, "partial", kStride, report);
}

Result<void> BenchDigest(const BenchOptions& options, BenchReport& report) {
  CAIRN_TRY_ASSIGN(Model model, Model::Make(options.bytes));
  const std::span<const std::byte> bytes = model.bytes();
  const uint64_t pieces = DivCeil(bytes.size(), kDigestBytes);
  for (uint64_t run = 1; run <= options.repeat; ++run) {
    BenchRow row{.what = "digest", .run = run, .bytes = bytes.size()};
    std::atomic<uint64_t> all = 0;
    const Meter meter;
    kv::ParallelFor(pieces, [&](size_t i, size_t) {
      const uint64_t begin = i * kDigestBytes;
      all ^=
          kv::PayloadDigest(bytes.subspan(begin, std::min(kDigestBytes, bytes.size() - begin))).lo;
    });
    row.measured = meter.Stop();
    row.extra = {{"digest", fmt::format("{:016x}", all.load())}};
    row.note = "the page digests of all tensors, as a save computes them";
    report.Add(row);
  }
  return {};
}

}  // namespace cairn::tools
