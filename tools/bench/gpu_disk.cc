// kv-bench gpu: saves from a device and loads to it.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/load/load_options.h"
#include "kv/base/digest.h"
#include "kv/read/snapshot.h"
#include "tools/bench/gpu_bench.h"
#include "tools/bench/measure.h"
#include "tools/common/json.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

constexpr uint64_t kChangedPageStride = 100;  // 1 % of the pages

/// Options of a save that waits for the training stream of the bench.
core::SaveOptions SaveOptionsOf(const GpuBench& bench, bool incremental) {
  core::SaveOptions options;
  options.incremental = incremental;
  options.streams = {{.device = bench.device, .stream = bench.plain->training_stream()}};
  return options;
}

/// Saves, and reports what crossed the bus and what was written.
Result<core::SaveReport> SaveOnce(GpuBench& bench, const DeviceModel& model,
                                  core::CheckpointStore& store, uint64_t step, bool incremental,
                                  const std::string& what, uint64_t run) {
  core::SaveReport saved;
  CAIRN_TRY_ASSIGN(const double seconds, TimeOf([&]() -> Result<void> {
                     CAIRN_TRY_ASSIGN(
                         saved, store.Save(step, model.State(), SaveOptionsOf(bench, incremental)));
                     return {};
                   }));
  BenchRow row = GpuRow(what, run, saved.logical_bytes, seconds);
  row.extra = {{"device_bytes", saved.device_bytes},
               {"payload_written_bytes", saved.written_bytes},
               {"chunks", saved.chunks},
               {"chunks_reused", saved.chunks_reused}};
  row.note = fmt::format("{} over the bus, {} written", HumanBytes(saved.device_bytes),
                         HumanBytes(saved.written_bytes));
  bench.report.Add(row);
  return saved;
}

Result<std::unique_ptr<core::CheckpointStore>> OpenStore(const ScratchDirectory& scratch,
                                                         kv::OpenMode mode) {
  // Nobody reads deleted files, and they would fill the disk.
  return core::CheckpointStore::Open(scratch.path(), mode, {.grace = std::chrono::milliseconds(0)});
}

/// The speed of the device itself: fio writes and reads a new file next to the store.
class Fio {
 public:
  explicit Fio(const BenchOptions& options)
      : options_(options), scratch_(options.directory, "fio") {}

  /// Adds the row "fio write" or "fio read", with the time that fio states: sequential O_DIRECT
  /// blocks of 4 MiB, 8 in flight, and after writes an fsync. A read needs an earlier write.
  /// kUnavailable: fio is not installed, or has failed.
  Result<void> Run(const char* direction, uint64_t run, BenchReport& report) const {
    const bool writes = std::string_view(direction) == "write";
    // In an existing file, fio would not have to allocate blocks as a new segment does.
    if (writes) scratch_.Remove();
    std::error_code ignored;
    std::filesystem::create_directory(scratch_.path(), ignored);
    std::string file;
    for (const char c : scratch_.path()) file += c == ':' ? "\\:" : std::string(1, c);
    const uint64_t size_bytes = options_.bytes / 4096 * 4096;
    const std::string command = fmt::format(
        "fio --name=cairn {} --rw={} --size={} --bs={} --direct=1 --iodepth=8 "
        "--output-format=json{} 2>&1 --ioengine=",
        ShellWord("--filename=" + file + "/file"), direction, size_bytes,
        std::min<uint64_t>(size_bytes, 4 << 20), writes ? " --end_fsync=1" : "");
    Result<std::string> output = OutputOf(command + "io_uring");
    if (!output) output = OutputOf(command + "libaio");  // for old kernels
    CAIRN_TRY(output);
    // Warnings may precede the document.
    const std::string json = output->substr(std::min(output->find('{'), output->size()));
    const auto bytes = FindJsonNumber(json, fmt::format("/jobs/0/{}/io_bytes", direction));
    const auto milliseconds = FindJsonNumber(json, fmt::format("/jobs/0/{}/runtime", direction));
    if (!bytes || !milliseconds) {
      return Fail(ErrorCode::kUnavailable, "the result of fio cannot be read");
    }
    report.Add(GpuRow(fmt::format("fio {}", direction), run, static_cast<uint64_t>(*bytes),
                      *milliseconds / 1000));
    return {};
  }

 private:
  const BenchOptions& options_;
  const ScratchDirectory scratch_;
};

/// Runs the first save of the process, which page-locks the memory that later saves reuse.
Result<void> WarmUp(GpuBench& bench, const DeviceModel& model) {
  const ScratchDirectory scratch(bench.options.directory, "gpu-warm-up");
  CAIRN_TRY_ASSIGN(const auto store, OpenStore(scratch, kv::OpenMode::kWrite));
  CAIRN_TRY(SaveOnce(bench, model, *store, 1, false, "first save of the process", 1));
  return store->Close();
}

Result<void> SaveRuns(GpuBench& bench, const DeviceModel& model, const ScratchDirectory& scratch,
                      const Fio& fio) {
  for (uint64_t run = 1; run <= bench.options.repeat; ++run) {
    scratch.Remove();
    CAIRN_TRY_ASSIGN(const auto store, OpenStore(scratch, kv::OpenMode::kWrite));
    CAIRN_TRY(SaveOnce(bench, model, *store, 1, false, "save to disk", run));
    CAIRN_TRY(store->Close());
    if (bench.options.fio) CAIRN_TRY(fio.Run("write", run, bench.report));
  }
  return {};
}

Result<void> LoadRuns(GpuBench& bench, const DeviceModel& model, const ScratchDirectory& scratch,
                      const Fio& fio) {
  CAIRN_TRY_ASSIGN(const std::vector<uint64_t> saved, model.PageDigests());
  for (uint64_t run = 1; run <= bench.options.repeat; ++run) {
    // So that bytes that are not loaded are detected.
    CAIRN_TRY(bench.plain->Fill(model.data(), model.length_bytes(), 0));
    CAIRN_TRY(bench.plain->Synchronize());
    CAIRN_TRY_ASSIGN(const auto store, OpenStore(scratch, kv::OpenMode::kRead));
    CAIRN_TRY_ASSIGN(const auto snapshot, store->kv().Latest());
    CAIRN_TRY_ASSIGN(const kv::StepInfo step, snapshot->FindStep(1));
    CAIRN_TRY(EvictFromPageCache(scratch.path()));
    const std::vector<core::LoadRequest> requests = model.Requests();
    CAIRN_TRY_ASSIGN(const double seconds, TimeOf([&]() -> Result<void> {
                       CAIRN_TRY(store->Load(step, requests));
                       return {};
                     }));
    bench.report.Add(GpuRow("cold load to device", run, bench.options.bytes, seconds));
    CAIRN_TRY_ASSIGN(const std::vector<uint64_t> loaded, model.PageDigests());
    if (loaded != saved) {
      return Fail(ErrorCode::kDataLoss, "loaded bytes differ from those that were saved");
    }
    if (bench.options.fio) CAIRN_TRY(fio.Run("read", run, bench.report));
  }
  return {};
}

/// Changes a byte in every hundredth page of the tensors, in different pages in each run.
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

}  // namespace

Result<void> BenchGpuDisk(GpuBench& bench) {
  CAIRN_TRY_ASSIGN(const DeviceModel model, DeviceModel::Make(bench));
  CAIRN_TRY(WarmUp(bench, model));
  const ScratchDirectory scratch(bench.options.directory, "gpu");
  const Fio fio(bench.options);
  CAIRN_TRY(SaveRuns(bench, model, scratch, fio));
  CAIRN_TRY(LoadRuns(bench, model, scratch, fio));
  bench.report.AddRateBar("save to disk", "fio write", 0.95);
  bench.report.AddRateBar("cold load to device", "fio read", std::nullopt);
  return {};
}

Result<void> BenchGpuPages(GpuBench& bench) {
  CAIRN_TRY_ASSIGN(const DeviceModel model, DeviceModel::Make(bench));
  const ScratchDirectory scratch(bench.options.directory, "gpu");
  CAIRN_TRY_ASSIGN(const auto store, OpenStore(scratch, kv::OpenMode::kWrite));
  CAIRN_TRY(store->Save(1, model.State(), SaveOptionsOf(bench, true)));
  const auto add_bar = [&](const char* what, const core::SaveReport& saved, double bar) {
    bench.report.AddBar({.what = what,
                         .reference = "all bytes",
                         .figure = static_cast<double>(saved.device_bytes),
                         .limit = static_cast<double>(saved.logical_bytes),
                         .unit = "bytes",
                         .bar = bar});
  };
  uint64_t step = 2;
  for (uint64_t run = 1; run <= bench.options.repeat; ++run) {
    CAIRN_TRY_ASSIGN(core::SaveReport saved,
                     SaveOnce(bench, model, *store, step++, true, "nothing changed", run));
    add_bar("over the bus, nothing changed", saved, 0);
    CAIRN_TRY(ChangePages(bench, model, run));
    CAIRN_TRY_ASSIGN(saved,
                     SaveOnce(bench, model, *store, step++, true, "1 % of pages changed", run));
    add_bar("over the bus, 1 % of pages changed", saved, 0.011);
  }
  return store->Close();
}

}  // namespace cairn::tools
