// kv-bench gpu: saves from a device and loads to it, and what they cost a training beside them.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "core/async_save.h"
#include "core/checkpoint_store.h"
#include "kv/digest.h"
#include "tools/bench/gpu.h"
#include "tools/bench/fio_row.h"
#include "tools/bench/scratch_store.h"
#include "tools/common/text.h"

namespace cairn::tools::internal {
namespace {

using StorePointer = std::unique_ptr<core::CheckpointStore>;

constexpr uint64_t kChangedPageStride = 100;  // 1 % of the pages
constexpr uint64_t kStallSteps = 7;

/// A model in device memory. Ownership: holds the memory.
class DeviceModel {
 public:
  static Result<DeviceModel> Make(GpuBench& bench) {
    DeviceModel model;
    model.device_ = bench.device;
    CAIRN_TRY_ASSIGN(model.tensors_, PlanModel(bench.options.bytes));
    const BenchTensor& last = model.tensors_.back();
    CAIRN_TRY_ASSIGN(model.memory_,
                     bench.backend->Allocate(bench.device, last.offset_bytes + last.nbytes));
    CAIRN_TRY_ASSIGN(model.queue_, bench.backend->OpenQueue(bench.device));
    // Bytes that differ from page to page, so that pages in a wrong place are noticed.
    CAIRN_TRY_ASSIGN(const ModelMemory host, ModelMemory::Allocate(model.tensors_));
    host.FillAll(1);
    for (size_t i = 0; i < model.tensors_.size(); ++i) {
      CAIRN_TRY(model.queue_->CopyIn(host.bytes_of(i), model.TargetOf(i), 0));
    }
    CAIRN_TRY_ASSIGN(const auto mark, model.queue_->Flush());
    CAIRN_TRY(model.queue_->Await(mark));
    return model;
  }

  std::byte* data() const { return memory_->data(); }
  uint64_t length_bytes() const { return memory_->length_bytes(); }
  const std::vector<BenchTensor>& tensors() const { return tensors_; }

  core::TensorTarget TargetOf(size_t i) const {
    return {tensors_[i].dtype, tensors_[i].shape, {}, data() + tensors_[i].offset_bytes, device_};
  }
  core::StateDict State() const {
    core::StateDict state;
    auto root = state.root();
    for (const BenchTensor& tensor : tensors_) {
      root.Tensor(tensor.fqn, {.dtype = tensor.dtype,
                               .shape = tensor.shape,
                               .data = data() + tensor.offset_bytes,
                               .device = device_});
    }
    return state;
  }
  std::vector<core::LoadRequest> Requests() const {
    std::vector<core::LoadRequest> requests;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      requests.push_back({tensors_[i].fqn, core::WholeBox(tensors_[i].shape), TargetOf(i)});
    }
    return requests;
  }
  /// Page digests of all tensors, in their order.
  Result<std::vector<uint64_t>> Leaves() const {
    std::vector<core::DigestJob> jobs;
    for (const BenchTensor& tensor : tensors_) {
      jobs.push_back({.source = {.dtype = core::DType::kUInt8,
                                 .shape = {tensor.nbytes},
                                 .data = data() + tensor.offset_bytes,
                                 .device = device_},
                      .length_bytes = tensor.nbytes});
    }
    CAIRN_TRY_ASSIGN(const auto digests, queue_->Digest(jobs, nullptr));
    const core::DeviceQueue::PageRange all{.first = 0, .count = digests.leaves->page_count()};
    return queue_->FetchPageDigests(*digests.leaves, {&all, 1});
  }

 private:
  int device_ = 0;
  std::vector<BenchTensor> tensors_;
  std::unique_ptr<core::DeviceMemory> memory_;
  std::shared_ptr<core::DeviceQueue> queue_;  // shared for its deleter
};

Result<StorePointer> OpenStore(const ScratchStore& scratch, kv::OpenMode mode) {
  return core::CheckpointStore::Open(scratch.path(), mode);
}

core::SaveOptions OptionsOf(const GpuBench& bench, bool incremental) {
  core::SaveOptions options;
  options.incremental = incremental;
  options.streams = {{.device = bench.device, .stream = bench.plain->training_stream()}};
  return options;
}

/// Page-locks what a save of the model needs, which only the first save of a process does.
Result<void> WarmUp(GpuBench& bench, const DeviceModel& model) {
  const ScratchStore scratch(bench.options.directory, "gpu-warm-up");
  CAIRN_TRY_ASSIGN(const StorePointer store, OpenStore(scratch, kv::OpenMode::kWrite));
  CAIRN_TRY_ASSIGN(const double seconds, TimeWork([&]() -> Result<void> {
                     CAIRN_TRY(store->Save(1, model.State(), OptionsOf(bench, false)));
                     return {};
                   }));
  bench.report.Add(GpuRow("first save of the process", 1, bench.options.bytes, seconds));
  return store->Close();
}

Result<void> SaveRuns(GpuBench& bench, const DeviceModel& model, const ScratchStore& scratch) {
  for (uint64_t run = 1; run <= bench.options.repeat; ++run) {
    scratch.Remove();
    CAIRN_TRY_ASSIGN(const StorePointer store, OpenStore(scratch, kv::OpenMode::kWrite));
    core::SaveReport saved;
    CAIRN_TRY_ASSIGN(const double seconds, TimeWork([&]() -> Result<void> {
                       CAIRN_TRY_ASSIGN(saved,
                                        store->Save(1, model.State(), OptionsOf(bench, false)));
                       return {};
                     }));
    BenchRow row = GpuRow("save to disk", run, saved.logical_bytes, seconds);
    row.extra = {{"device_bytes", saved.device_bytes},
                 {"direct_bytes", saved.direct_bytes},
                 {"payload_written_bytes", saved.written_bytes},
                 {"durable", true}};
    bench.report.Add(row);
    CAIRN_TRY(store->Close());
    if (bench.options.fio) {
      CAIRN_TRY_ASSIGN(const FioResult fio, FioWrite(bench.options.directory, bench.options.bytes));
      bench.report.Add(FioRow("gpu", "fio write", run, fio));
    }
  }
  return {};
}

Result<void> LoadRuns(GpuBench& bench, const DeviceModel& model, const ScratchStore& scratch) {
  CAIRN_TRY_ASSIGN(const std::vector<uint64_t> saved, model.Leaves());
  for (uint64_t run = 1; run <= bench.options.repeat; ++run) {
    // So that bytes which are not loaded are noticed.
    CAIRN_TRY(bench.plain->Fill(model.data(), model.length_bytes(), 0));
    CAIRN_TRY(bench.plain->Synchronize());
    CAIRN_TRY_ASSIGN(const StorePointer store, OpenStore(scratch, kv::OpenMode::kRead));
    CAIRN_TRY_ASSIGN(const auto snapshot, store->kv().Latest());
    CAIRN_TRY_ASSIGN(const kv::StepInfo step, snapshot->FindStep(1));
    CAIRN_TRY(EvictFromPageCache(scratch.path()));
    const std::vector<core::LoadRequest> requests = model.Requests();
    CAIRN_TRY_ASSIGN(const double seconds, TimeWork([&]() -> Result<void> {
                       CAIRN_TRY(store->Load(step, requests));
                       return {};
                     }));
    bench.report.Add(GpuRow("cold load to device", run, bench.options.bytes, seconds));
    CAIRN_TRY_ASSIGN(const std::vector<uint64_t> loaded, model.Leaves());
    if (loaded != saved) {
      return Fail(ErrorCode::kDataLoss, "loaded bytes are not those that were saved");
    }
    if (bench.options.fio) {
      CAIRN_TRY_ASSIGN(const FioResult fio, FioRead(bench.options.directory, bench.options.bytes));
      bench.report.Add(FioRow("gpu", "fio read", run, fio));
    }
  }
  return {};
}

/// Payload that crossed the bus, to the host or to the disk.
uint64_t LeftDevice(const core::SaveReport& saved) {
  return saved.device_bytes + saved.direct_bytes;
}

/// An incremental save, and what it brought and wrote.
Result<core::SaveReport> SaveAgain(GpuBench& bench, const DeviceModel& model,
                                   core::CheckpointStore& store, uint64_t step,
                                   const std::string& what, uint64_t run) {
  core::SaveReport saved;
  CAIRN_TRY_ASSIGN(const double seconds, TimeWork([&]() -> Result<void> {
                     CAIRN_TRY_ASSIGN(saved,
                                      store.Save(step, model.State(), OptionsOf(bench, true)));
                     return {};
                   }));
  BenchRow row = GpuRow(what, run, saved.logical_bytes, seconds);
  row.extra = {{"device_bytes", saved.device_bytes},
               {"direct_bytes", saved.direct_bytes},
               {"payload_written_bytes", saved.written_bytes},
               {"chunks", saved.chunks},
               {"chunks_reused", saved.chunks_reused}};
  row.note = fmt::format("{} over the bus, {} written", HumanBytes(LeftDevice(saved)),
                         HumanBytes(saved.written_bytes));
  bench.report.Add(row);
  return saved;
}

/// Changes a byte in every hundredth page of the tensors, another one in each run.
Result<void> ChangePages(GpuBench& bench, const DeviceModel& model, uint64_t run) {
  uint64_t page = 0;
  for (const BenchTensor& tensor : model.tensors()) {
    for (uint64_t at = 0; at < tensor.nbytes; at += kv::kPageBytes, ++page) {
      if (page % kChangedPageStride != run % kChangedPageStride) continue;
      CAIRN_TRY(bench.plain->Fill(model.data() + tensor.offset_bytes + at, 1,
                                  static_cast<uint8_t>(run * 83 + page)));
    }
  }
  return bench.plain->Synchronize();
}

/// A training whose step computes for longer than the state takes to cross the bus, then changes
/// all tensors, as an optimizer does.
class Training {
 public:
  Training(GpuBench& bench, const DeviceModel& model, uint64_t kernels)
      : bench_(bench), model_(model), kernels_(kernels) {}

  /// Seconds of one step, from its beginning until its stream is done. `save`, if given, comes
  /// first, and `hold_back` before the tensors change.
  Result<double> Step(const std::function<Result<void>()>& save,
                      const std::function<Result<void>()>& hold_back) {
    return TimeWork([&]() -> Result<void> {
      if (save) CAIRN_TRY(save());
      CAIRN_TRY(bench_.plain->Compute(kernels_));
      if (hold_back) CAIRN_TRY(hold_back());
      CAIRN_TRY(bench_.plain->Fill(model_.data(), model_.length_bytes(), ++value_));
      return bench_.plain->Synchronize();
    });
  }

 private:
  GpuBench& bench_;
  const DeviceModel& model_;
  const uint64_t kernels_;
  uint8_t value_ = 0;
};

struct StallTimes {
  std::vector<double> steps;
  std::vector<double> calls;  // of AsyncSaver::Save
};

Result<StallTimes> StepsWithSaves(GpuBench& bench, const DeviceModel& model, Training& training,
                                  core::CheckpointStore& store, bool snapshot,
                                  uint64_t first_step) {
  core::AsyncSaver saver(&store);
  StallTimes times;
  for (uint64_t i = 0; i < kStallSteps; ++i) {
    core::SaveOptions options = OptionsOf(bench, true);
    options.device_snapshot = snapshot;
    core::SaveHandle handle;
    double call = 0;
    const auto save = [&]() -> Result<void> {
      CAIRN_TRY_ASSIGN(call, TimeWork([&]() -> Result<void> {
                         CAIRN_TRY_ASSIGN(handle,
                                          saver.Save(first_step + i, model.State(), options));
                         return {};
                       }));
      return {};
    };
    const auto hold_back = [&] {
      return handle.MakeStreamWait({.device = bench.device, .stream = bench.plain->training_stream()});
    };
    CAIRN_TRY_ASSIGN(const double step, training.Step(save, hold_back));
    CAIRN_TRY(handle.Wait());
    // All pages change in each step, so the one before would only fill the disk.
    if (i > 0) CAIRN_TRY(store.Delete(std::vector<uint64_t>{first_step + i - 1}));
    if (i == 0) continue;  // page-locks, and has nothing to compare with
    times.steps.push_back(step);
    times.calls.push_back(call);
  }
  return times;
}

double MedianOf(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

/// Kernels that take one and a half times as long as a plain copy of the state.
Result<uint64_t> KernelsOfAStep(GpuBench& bench, const DeviceModel& model) {
  const uint64_t sample_bytes = std::min<uint64_t>(model.length_bytes(), 256 << 20);
  CAIRN_TRY_ASSIGN(const auto host, LockedMemory::Make(bench.backend, sample_bytes));
  CAIRN_TRY_ASSIGN(double copy, bench.plain->CopyOut(model.data(), host->bytes()));
  CAIRN_TRY_ASSIGN(copy, bench.plain->CopyOut(model.data(), host->bytes()));
  CAIRN_TRY_ASSIGN(const double kernel, bench.plain->KernelSeconds());
  const double whole =
      copy * static_cast<double>(model.length_bytes()) / static_cast<double>(sample_bytes);
  return 1 + static_cast<uint64_t>(1.5 * whole / kernel);
}

}  // namespace

Result<void> BenchGpuDisk(GpuBench& bench) {
  CAIRN_TRY_ASSIGN(const DeviceModel model, DeviceModel::Make(bench));
  CAIRN_TRY(WarmUp(bench, model));
  const ScratchStore scratch(bench.options.directory, "gpu");
  const FioFile fio_file{bench.options.directory};
  CAIRN_TRY(SaveRuns(bench, model, scratch));
  CAIRN_TRY(LoadRuns(bench, model, scratch));
  bench.report.AddBar("gpu", "save to disk", "fio write", 0.95);
  bench.report.AddRatio("gpu", "cold load to device", "fio read");
  return {};
}

Result<void> BenchGpuPages(GpuBench& bench) {
  CAIRN_TRY_ASSIGN(const DeviceModel model, DeviceModel::Make(bench));
  const ScratchStore scratch(bench.options.directory, "gpu");
  CAIRN_TRY_ASSIGN(const StorePointer store, OpenStore(scratch, kv::OpenMode::kWrite));
  CAIRN_TRY(store->Save(1, model.State(), OptionsOf(bench, true)));
  uint64_t step = 2;
  for (uint64_t run = 1; run <= bench.options.repeat; ++run) {
    CAIRN_TRY_ASSIGN(core::SaveReport saved,
                     SaveAgain(bench, model, *store, step++, "nothing changed", run));
    bench.report.AddBar({.verb = "gpu",
                         .what = "over the bus, nothing changed",
                         .reference = "all bytes",
                         .figure = static_cast<double>(LeftDevice(saved)),
                         .limit = static_cast<double>(saved.logical_bytes),
                         .unit = "bytes",
                         .most = 0});
    CAIRN_TRY(ChangePages(bench, model, run));
    CAIRN_TRY_ASSIGN(saved, SaveAgain(bench, model, *store, step++, "1 % of pages changed", run));
    bench.report.AddBar({.verb = "gpu",
                         .what = "over the bus, 1 % of pages changed",
                         .reference = "all bytes",
                         .figure = static_cast<double>(LeftDevice(saved)),
                         .limit = static_cast<double>(saved.logical_bytes),
                         .unit = "bytes",
                         .most = 0.011});
  }
  return store->Close();
}

Result<void> BenchGpuStall(GpuBench& bench) {
  CAIRN_TRY_ASSIGN(const DeviceModel model, DeviceModel::Make(bench));
  CAIRN_TRY_ASSIGN(const uint64_t kernels, KernelsOfAStep(bench, model));
  Training training(bench, model, kernels);
  const ScratchStore scratch(bench.options.directory, "gpu");
  CAIRN_TRY_ASSIGN(const StorePointer store, OpenStore(scratch, kv::OpenMode::kWrite));
  uint64_t first_step = 1;
  for (const bool snapshot : {false, true}) {
    const std::string kind = snapshot ? "device snapshot" : "lazy staging";
    CAIRN_TRY_ASSIGN(const StallTimes with,
                     StepsWithSaves(bench, model, training, *store, snapshot, first_step));
    first_step += kStallSteps;
    std::vector<double> plain;
    for (uint64_t i = 0; i < kStallSteps; ++i) {
      CAIRN_TRY_ASSIGN(const double step, training.Step({}, {}));
      plain.push_back(step);
    }
    const double bare = MedianOf(plain);
    const double stall = std::max(0.0, MedianOf(with.steps) - bare);
    BenchRow row = GpuRow("step with " + kind, 1, model.length_bytes(), MedianOf(with.steps));
    row.rate_matters = false;
    row.extra = {{"step_alone_seconds", bare},
                 {"stall_seconds", stall},
                 {"save_call_seconds", MedianOf(with.calls)}};
    row.note = fmt::format("{} alone; the call of Save took {}", HumanSeconds(bare),
                           HumanSeconds(MedianOf(with.calls)));
    bench.report.Add(row);
    bench.report.AddBar({.verb = "gpu",
                         .what = "stall, " + kind,
                         .reference = "step",
                         .figure = stall,
                         .limit = bare,
                         .unit = "s",
                         .most = 0.01});
  }
  return store->Close();
}

}  // namespace cairn::tools::internal
