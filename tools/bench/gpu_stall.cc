// kv-bench gpu: the time that asynchronous saves cost a training.

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "core/async_save.h"
#include "core/checkpoint_store.h"
#include "tools/bench/gpu_bench.h"
#include "tools/bench/measure.h"
#include "tools/common/quantities.h"

namespace cairn::tools {
namespace {

constexpr uint64_t kStallSteps = 7;

/// A training whose step computes for longer than the state needs to cross the bus, and then
/// changes all tensors, as an optimizer does.
class Training {
 public:
  Training(GpuBench& bench, const DeviceModel& model, uint64_t kernels)
      : bench_(bench), model_(model), kernels_(kernels) {}

  /// Returns the seconds of one step, from its beginning until its stream is idle. `save`, if
  /// given, runs first, and `make_stream_wait` before the tensors change.
  Result<double> Step(const std::function<Result<void>()>& save,
                      const std::function<Result<void>()>& make_stream_wait) {
    return TimeOf([&]() -> Result<void> {
      if (save) CAIRN_TRY(save());
      CAIRN_TRY(bench_.plain->Compute(kernels_));
      if (make_stream_wait) CAIRN_TRY(make_stream_wait());
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
  std::vector<double> calls;  // calls of AsyncSaver::Save
};

Result<StallTimes> StepsWithSaves(GpuBench& bench, const DeviceModel& model, Training& training,
                                  core::CheckpointStore& store, bool snapshot,
                                  uint64_t first_step) {
  core::AsyncSaver saver(&store);
  StallTimes times;
  for (uint64_t i = 0; i < kStallSteps; ++i) {
    core::SaveOptions options = SaveOptionsOf(bench, true);
    options.device_snapshot = snapshot;
    core::SaveHandle handle;
    double call = 0;
    const auto save = [&]() -> Result<void> {
      CAIRN_TRY_ASSIGN(call, TimeOf([&]() -> Result<void> {
                         CAIRN_TRY_ASSIGN(handle,
                                          saver.Save(first_step + i, model.State(), options));
                         return {};
                       }));
      return {};
    };
    const auto make_stream_wait = [&] {
      return handle.MakeStreamWait(
          {.device = bench.device, .stream = bench.plain->training_stream()});
    };
    CAIRN_TRY_ASSIGN(const double step, training.Step(save, make_stream_wait));
    CAIRN_TRY(handle.Wait());
    // All pages change in each step, so the previous step would only fill the disk.
    if (i > 0) CAIRN_TRY(store.Delete(std::vector<uint64_t>{first_step + i - 1}));
    if (i == 0) continue;  // the first save page-locks memory and has no base
    times.steps.push_back(step);
    times.calls.push_back(call);
  }
  return times;
}

/// Returns the number of kernels that take one and a half times as long as a copy of the state.
Result<uint64_t> KernelsPerStep(GpuBench& bench, const DeviceModel& model) {
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

Result<void> BenchGpuStall(GpuBench& bench) {
  CAIRN_TRY_ASSIGN(const DeviceModel model, DeviceModel::Make(bench));
  CAIRN_TRY_ASSIGN(const uint64_t kernels, KernelsPerStep(bench, model));
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
    const double bare = Median(plain);
    const double stall = std::max(0.0, Median(with.steps) - bare);
    BenchRow row = GpuRow("step with " + kind, 1, model.length_bytes(), Median(with.steps));
    row.rate_matters = false;
    row.extra = {{"step_alone_seconds", bare},
                 {"stall_seconds", stall},
                 {"save_call_seconds", Median(with.calls)}};
    row.note = fmt::format("{} without a save; the call of Save took {}", HumanSeconds(bare),
                           HumanSeconds(Median(with.calls)));
    bench.report.Add(row);
    bench.report.AddBar({.what = "stall, " + kind,
                         .reference = "step",
                         .figure = stall,
                         .limit = bare,
                         .unit = "s",
                         .bar = 0.01});
  }
  return store->Close();
}

}  // namespace cairn::tools
