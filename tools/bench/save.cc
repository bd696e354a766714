// kv-bench save and incremental: durable saves of a complete model.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "core/checkpoint_store.h"
#include "tools/bench/fio.h"
#include "tools/bench/measure.h"
#include "tools/bench/model.h"
#include "tools/bench/verbs.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"

namespace cairn::tools {
namespace {

constexpr const char* kUnchanged = "nothing changed";
constexpr const char* kSum = "sum, 2 threads";
constexpr double kSumBar = 0.8;
constexpr uint64_t kWrittenBarBytes = 64 << 10;

/// Saves the model as `step` and measures what that added to the disk, including records.
Result<BenchRow> SaveAndMeasureDisk(core::CheckpointStore& store, const std::string& directory,
                                    const ModelMemory& model, uint64_t step) {
  const core::StateDict state = model.State();
  CAIRN_TRY_ASSIGN(const DiskUsage before, MeasureDiskUsage(directory));
  ProgressLine progress("saving");
  BenchRow row{.bytes = 0};
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

/// Measures how fast two threads sum the 64-bit words of the memory.
BenchRow SumRow(const ModelMemory& model, uint64_t run) {
  constexpr size_t kThreads = 2;
  const std::span<const std::byte> memory = model.bytes();
  const size_t share_bytes = memory.size() / kThreads / sizeof(uint64_t) * sizeof(uint64_t);
  std::array<uint64_t, kThreads> sums{};
  BenchRow row{.what = kSum, .run = run, .bytes = memory.size()};
  const Meter meter;
  {
    std::vector<std::jthread> threads;
    for (size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&sums, t, share = memory.subspan(t * share_bytes, share_bytes)] {
        uint64_t sum = 0;
        for (size_t at = 0; at < share.size(); at += sizeof(uint64_t)) {
          uint64_t word;
          std::memcpy(&word, share.data() + at, sizeof(word));
          sum += word;
        }
        sums[t] = sum;
      });
    }
  }
  row.measured = meter.Stop();
  row.extra["result"] = sums[0] + sums[1];  // so that no compiler can remove the computation
  row.note = "the fastest that two threads can read the tensors";
  return row;
}

void AddUnchangedBars(const std::vector<double>& written_bytes, BenchReport& report) {
  report.AddRateBar(kUnchanged, kSum, kSumBar);
  if (written_bytes.empty()) return;
  report.AddBar({.what = "written with nothing changed",
                 .reference = HumanBytes(kWrittenBarBytes),
                 .figure = Median(written_bytes),
                 .limit = static_cast<double>(kWrittenBarBytes),
                 .unit = "bytes",
                 .bar = 1});
}

}  // namespace

Result<void> BenchSave(const BenchOptions& options, BenchReport& report) {
  const ScratchStore scratch(options.directory, "save");
  const Fio fio(options.directory, options.bytes);
  CAIRN_TRY_ASSIGN(const ModelMemory model, MakeModel(options));
  model.FillAll(1);
  const core::StateDict state = model.State();
  for (uint64_t run = 1; run <= options.repeat; ++run) {
    scratch.Remove();
    CAIRN_TRY_ASSIGN(const StorePointer store, OpenStore(scratch, kv::OpenMode::kWrite));
    ProgressLine progress("saving");
    BenchRow row{.what = "save", .run = run};
    const Meter meter;
    CAIRN_TRY_ASSIGN(
        const core::SaveReport saved,
        store->Save(1, state, {.incremental = false, .progress = progress.callback()}));
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
      CAIRN_TRY_ASSIGN(const BenchRow limit, fio.Write(run));
      report.Add(limit);
    }
  }
  report.AddRatio("save", "fio write");
  return {};
}

Result<void> BenchIncremental(const BenchOptions& options, BenchReport& report) {
  return WithSavedModel(
      options, "incremental",
      [&](const std::string& directory, ModelMemory& model) -> Result<void> {
        CAIRN_TRY_ASSIGN(const StorePointer store,
                         core::CheckpointStore::Open(directory, kv::OpenMode::kWrite));
        uint64_t step = 2;
        std::vector<double> written;
        for (uint64_t run = 1; run <= options.repeat; ++run) {
          CAIRN_TRY_ASSIGN(BenchRow row, SaveAndMeasureDisk(*store, directory, model, step++));
          row.what = kUnchanged, row.run = run;
          row.extra["changed_percent"] = 0;
          report.Add(row);
          if (row.measured.device_written_bytes) {
            written.push_back(static_cast<double>(*row.measured.device_written_bytes));
          }
          report.Add(SumRow(model, run));
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
          CAIRN_TRY_ASSIGN(row, SaveAndMeasureDisk(*store, directory, model, step++));
          row.what = fmt::format("{:g} % changed", options.changed_percent), row.run = run;
          row.extra["changed_percent"] = options.changed_percent;
          row.extra["changed_keys"] = changed;
          row.extra["changed_bytes"] = changed_bytes;
          report.Add(row);
        }
        AddUnchangedBars(written, report);
        return store->Close();
      });
}

}  // namespace cairn::tools
