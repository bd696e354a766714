// kv-bench save, load, partial and incremental: whole checkpoints against one store.

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>

#include "core/checkpoint_store.h"
#include "tools/bench/verbs.h"
#include "tools/common/disk_usage.h"
#include "tools/bench/fio_row.h"
#include "tools/bench/model_state.h"
#include "tools/common/progress.h"
#include "tools/bench/scratch_store.h"
#include "tools/common/text.h"

namespace cairn::tools::internal {
namespace {

namespace fs = std::filesystem;

using StorePointer = std::unique_ptr<core::CheckpointStore>;

Result<StorePointer> OpenForWriting(const ScratchStore& scratch) {
  return core::CheckpointStore::Open(scratch.path(), kv::OpenMode::kWrite);
}

Result<ModelMemory> MakeModel(const BenchOptions& options) {
  CAIRN_TRY_ASSIGN(auto tensors, PlanModel(options.bytes));
  return ModelMemory::Allocate(std::move(tensors));
}

core::SaveOptions FullSave(ProgressLine& progress) {
  return {.incremental = false, .progress = progress.callback()};
}

/// A store with the model as step 1, saved and closed, and `use` run on it while it exists.
Result<void> WithSavedModel(
    const BenchOptions& options, const char* verb,
    const std::function<Result<void>(const std::string&, ModelMemory&)>& use) {
  const ScratchStore scratch(options.directory, verb);
  CAIRN_TRY_ASSIGN(ModelMemory model, MakeModel(options));
  model.FillAll(1);
  {
    ProgressLine progress("preparing the store");
    CAIRN_TRY_ASSIGN(const StorePointer store, OpenForWriting(scratch));
    const core::StateDict state = model.State();
    CAIRN_TRY(store->Save(1, state, FullSave(progress)));
    CAIRN_TRY(store->Close());
  }
  return use(scratch.path(), model);
}

Result<BenchRow> LoadOnce(const core::CheckpointStore& store, const ModelMemory& model,
                          const std::vector<size_t>& chosen) {
  std::vector<core::LoadRequest> requests;
  BenchRow row;
  for (const size_t i : chosen) {
    const BenchTensor& tensor = model.tensors()[i];
    requests.push_back({tensor.fqn,
                        core::WholeBox(tensor.shape),
                        {tensor.dtype, tensor.shape, {}, model.bytes_of(i).data()}});
    row.bytes += tensor.nbytes;
  }
  CAIRN_TRY_ASSIGN(const auto snapshot, store.kv().Latest());
  CAIRN_TRY_ASSIGN(const kv::StepInfo step, snapshot->FindStep(1));
  ProgressLine progress("loading");
  const Meter meter;
  CAIRN_TRY_ASSIGN(const core::LoadReport report, store.Load(step, requests, progress.callback()));
  row.measured = meter.Stop();
  row.extra["keys"] = chosen.size();
  row.extra["bytes_read"] = report.bytes_read;
  row.extra["bytes_read_ratio"] =
      static_cast<double>(report.bytes_read) / static_cast<double>(row.bytes);
  return row;
}

Result<void> CheckLoaded(const ModelMemory& model, const std::vector<size_t>& chosen) {
  for (const size_t i : chosen) {
    const auto loaded = model.bytes_of(i);
    const std::vector<std::byte> copy(loaded.begin(), loaded.end());
    model.Fill(i, 1);
    if (!std::equal(copy.begin(), copy.end(), loaded.begin())) {
      return Fail(Error{.code = ErrorCode::kDataLoss,
                        .message = "loaded bytes are not those that were saved",
                        .key = model.tensors()[i].fqn});
    }
  }
  return {};
}

std::vector<size_t> EveryTensor(const ModelMemory& model) {
  std::vector<size_t> all(model.tensors().size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  return all;
}

/// Every hundredth key, beginning elsewhere in each run.
std::vector<size_t> OnePercent(const ModelMemory& model, uint64_t run) {
  constexpr uint64_t kStride = 100;
  const uint64_t count = model.tensors().size();
  std::vector<size_t> chosen;
  for (size_t i = run * 37 % std::min(kStride, count); i < count; i += kStride) chosen.push_back(i);
  return chosen;
}

/// Saves the model as `step` and tells what that put on disk, records and all.
Result<BenchRow> SaveAndWeigh(core::CheckpointStore& store, const std::string& directory,
                              const ModelMemory& model, uint64_t step) {
  const core::StateDict state = model.State();
  CAIRN_TRY_ASSIGN(const DiskUsage before, MeasureDiskUsage(directory));
  ProgressLine progress("saving");
  BenchRow row{.verb = "incremental", .bytes = 0};
  const Meter meter;
  CAIRN_TRY_ASSIGN(const core::SaveReport report,
                   store.Save(step, state, {.progress = progress.callback()}));
  row.measured = meter.Stop();
  CAIRN_TRY_ASSIGN(const DiskUsage after, MeasureDiskUsage(directory));
  row.bytes = report.logical_bytes;
  const auto grown = static_cast<int64_t>(after.file_bytes - before.file_bytes);
  row.extra = {{"payload_written_bytes", report.written_bytes},
               {"chunks", report.chunks},
               {"chunks_reused", report.chunks_reused},
               {"store_grown_bytes", grown},
               {"store_grown_allocated_bytes",
                static_cast<int64_t>(after.allocated_bytes - before.allocated_bytes)}};
  row.note = fmt::format("payload {}, files grown by {}", HumanBytes(report.written_bytes),
                         HumanBytes(static_cast<uint64_t>(std::max<int64_t>(grown, 0))));
  if (row.measured.device_written_bytes) {
    row.note +=
        fmt::format(", {} sent to the device", HumanBytes(*row.measured.device_written_bytes));
  }
  return row;
}

}  // namespace

Result<void> EvictFromPageCache(const std::string& directory) {
  std::error_code error;
  fs::recursive_directory_iterator entries(directory, error);
  for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) {
    if (!entries->is_regular_file(error)) continue;
    const int file = open(entries->path().c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return Fail(SystemError(errno, "opening to evict", entries->path().string()));
    // Dirty pages cannot be dropped, so they are written back first.
    int failed = fsync(file) != 0 ? errno : 0;
    if (failed == 0) failed = posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    close(file);
    if (failed != 0) return Fail(SystemError(failed, "evicting", entries->path().string()));
  }
  if (error) return Fail(SystemError(error.value(), "listing files to evict", directory));
  return {};
}

Result<void> BenchSave(const BenchOptions& options, BenchReport& report) {
  const ScratchStore scratch(options.directory, "save");
  const FioFile fio_file{options.directory};
  CAIRN_TRY_ASSIGN(const ModelMemory model, MakeModel(options));
  model.FillAll(1);
  const core::StateDict state = model.State();
  for (uint64_t run = 1; run <= options.repeat; ++run) {
    scratch.Remove();
    CAIRN_TRY_ASSIGN(const StorePointer store, OpenForWriting(scratch));
    ProgressLine progress("saving");
    BenchRow row{.verb = "save", .what = "save", .run = run};
    const Meter meter;
    CAIRN_TRY_ASSIGN(const core::SaveReport saved, store->Save(1, state, FullSave(progress)));
    row.measured = meter.Stop();
    progress.Clear();
    row.bytes = saved.logical_bytes;
    row.extra = {{"keys", model.tensors().size()},
                 {"chunks", saved.chunks},
                 {"payload_written_bytes", saved.written_bytes},
                 {"durable", true}};
    row.note = fmt::format("durable, {} keys, {} chunks", GroupedCount(model.tensors().size()),
                           GroupedCount(saved.chunks));
    report.Add(row);
    CAIRN_TRY(store->Close());
    scratch.Remove();
    if (options.fio) {
      CAIRN_TRY_ASSIGN(const FioResult fio, FioWrite(options.directory, options.bytes));
      report.Add(FioRow("save", "fio write", run, fio));
    }
  }
  report.AddRatio("save", "save", "fio write");
  return {};
}

Result<void> BenchLoad(const BenchOptions& options, BenchReport& report) {
  const FioFile fio_file{options.directory};
  return WithSavedModel(
      options, "load", [&](const std::string& directory, ModelMemory& model) -> Result<void> {
        if (options.fio) CAIRN_TRY(FioWrite(options.directory, options.bytes));
        const std::string what = options.warm ? "warm load" : "cold load";
        for (uint64_t run = 1; run <= options.repeat; ++run) {
          model.FillAll(2);  // so that bytes which are not loaded are noticed
          CAIRN_TRY_ASSIGN(const StorePointer store,
                           core::CheckpointStore::Open(directory, kv::OpenMode::kRead));
          if (!options.warm) CAIRN_TRY(EvictFromPageCache(directory));
          CAIRN_TRY_ASSIGN(BenchRow row, LoadOnce(*store, model, EveryTensor(model)));
          row.verb = "load", row.what = what, row.run = run;
          row.extra["cold"] = !options.warm;
          row.note = options.warm
                         ? "files as the save or the run before left them in the page cache"
                         : "every file of the store evicted from the page cache before";
          report.Add(row);
          if (const size_t bad = model.FindMismatch(1); bad != model.tensors().size()) {
            return Fail(Error{.code = ErrorCode::kDataLoss,
                              .message = "loaded bytes are not those that were saved",
                              .key = model.tensors()[bad].fqn});
          }
          if (options.fio) {
            CAIRN_TRY_ASSIGN(const FioResult fio, FioRead(options.directory, options.bytes));
            report.Add(FioRow("load", "fio read", run, fio));
          }
        }
        report.AddRatio("load", what, "fio read");
        return {};
      });
}

Result<void> BenchPartial(const BenchOptions& options, BenchReport& report) {
  return WithSavedModel(
      options, "partial", [&](const std::string& directory, ModelMemory& model) -> Result<void> {
        for (uint64_t run = 1; run <= options.repeat; ++run) {
          const std::vector<size_t> chosen = OnePercent(model, run);
          for (const size_t i : chosen) model.Fill(i, 2);
          CAIRN_TRY_ASSIGN(const StorePointer store,
                           core::CheckpointStore::Open(directory, kv::OpenMode::kRead));
          CAIRN_TRY(EvictFromPageCache(directory));
          CAIRN_TRY_ASSIGN(BenchRow row, LoadOnce(*store, model, chosen));
          CAIRN_TRY(CheckLoaded(model, chosen));
          row.verb = "partial", row.what = "1 % of keys", row.run = run;
          row.note =
              fmt::format("cold, {} of {} keys; read {:.4f} of their bytes", chosen.size(),
                          model.tensors().size(), row.extra["bytes_read_ratio"].get<double>());
          report.Add(row);
        }
        return {};
      });
}

Result<void> BenchIncremental(const BenchOptions& options, BenchReport& report) {
  return WithSavedModel(
      options, "incremental",
      [&](const std::string& directory, ModelMemory& model) -> Result<void> {
        CAIRN_TRY_ASSIGN(const StorePointer store,
                         core::CheckpointStore::Open(directory, kv::OpenMode::kWrite));
        uint64_t step = 2;
        for (uint64_t run = 1; run <= options.repeat; ++run) {
          CAIRN_TRY_ASSIGN(BenchRow row, SaveAndWeigh(*store, directory, model, step++));
          row.what = "nothing changed", row.run = run;
          row.extra["changed_percent"] = 0;
          report.Add(row);
          if (!(options.changed_percent > 0)) continue;
          const uint64_t count = model.tensors().size();
          const auto changed = static_cast<uint64_t>(
              std::max(1.0, static_cast<double>(count) * options.changed_percent / 100));
          uint64_t changed_bytes = 0;
          for (uint64_t i = 0; i < changed; ++i) {
            const size_t tensor = (i * count / changed + run) % count;
            model.Fill(tensor, 1 + run);
            changed_bytes += model.tensors()[tensor].nbytes;
          }
          CAIRN_TRY_ASSIGN(row, SaveAndWeigh(*store, directory, model, step++));
          row.what = fmt::format("{:g} % changed", options.changed_percent), row.run = run;
          row.extra["changed_percent"] = options.changed_percent;
          row.extra["changed_keys"] = changed;
          row.extra["changed_bytes"] = changed_bytes;
          report.Add(row);
        }
        return store->Close();
      });
}

}  // namespace cairn::tools::internal
