// kv-bench tune: searches for the I/O settings that suit a disk.

#include "tools/bench/tune.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/io_uring.h>
#include <malloc.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "core/checkpoint_store.h"
#include "tools/bench/measure.h"
#include "tools/bench/model_state.h"
#include "tools/bench/page_cache.h"
#include "tools/bench/scratch_store.h"
#include "tools/bench/tune_search.h"
#include "tools/common/json.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/table.h"

namespace cairn::tools {
namespace {

/// Defaults that reach this share of the best speed need no settings.
constexpr double kGoodRatio = 0.95;

bool KernelGrantsUring() {
  io_uring_params parameters{};
  const long ring = syscall(SYS_io_uring_setup, 1, &parameters);
  if (ring >= 0) close(static_cast<int>(ring));
  return ring >= 0;
}

bool GrantsDirect(const std::string& directory) {
  const auto path = std::filesystem::path(directory) / fmt::format("cairn-bench-{}", getpid());
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600);
  // EINVAL: the file system refuses O_DIRECT, and may have created the file.
  if (file >= 0 || errno == EINVAL) unlink(path.c_str());
  if (file >= 0) close(file);
  return file >= 0;
}

/// Returns a meter that measures the memory of this run. Without the trim, a run would use memory
/// that the previous one left in the allocator, and would appear to need none.
Meter StartMeter() {
  malloc_trim(0);
  return {};
}

/// Saves and loads one model repeatedly.
class Tuner {
 public:
  Tuner(const std::string& directory, const ModelMemory& model)
      : scratch_(directory, "tune"), state_(model.State()) {
    for (size_t i = 0; i < model.tensors().size(); ++i) {
      const BenchTensor& tensor = model.tensors()[i];
      requests_.push_back({tensor.fqn,
                           core::WholeBox(tensor.shape),
                           {tensor.dtype, tensor.shape, {}, model.bytes_of(i).data()}});
      bytes_ += tensor.nbytes;
    }
  }

  Result<TuneRun> RunOnce(const kv::IoOptions& io) {
    kv::StoreOptions options;
    options.io = io;
    TuneRun run;
    scratch_.Remove();
    {
      CAIRN_TRY_ASSIGN(const auto store,
                       core::CheckpointStore::Open(scratch_.path(), kv::OpenMode::kWrite, options));
      const Meter meter = StartMeter();
      CAIRN_TRY(store->Save(1, state_, {.incremental = false, .progress = Progress()}));
      Note(meter.Stop(), run.save_seconds, run);
      CAIRN_TRY(store->Close());
    }
    CAIRN_TRY(EvictFromPageCache(scratch_.path()));
    CAIRN_TRY_ASSIGN(const auto store,
                     core::CheckpointStore::Open(scratch_.path(), kv::OpenMode::kRead, options));
    CAIRN_TRY_ASSIGN(const auto steps, store->Steps());
    const Meter meter = StartMeter();
    CAIRN_TRY(store->Load(steps.front(), requests_, Progress()));
    Note(meter.Stop(), run.load_seconds, run);
    scratch_.Remove();
    return run;
  }

 private:
  void Note(const Measurement& measured, double& seconds, TuneRun& run) {
    seconds = measured.seconds;
    run.peak_beyond_tensors_bytes =
        std::max(run.peak_beyond_tensors_bytes, measured.peak_beyond_tensors_bytes);
    done_bytes_ += bytes_;
  }
  /// Progress of the search, assuming that it takes the maximum number of runs.
  core::Progress Progress() {
    return [this](uint64_t done, uint64_t) {
      return line_.Update(done_bytes_ + done, 2 * MaxTuneRuns() * bytes_);
    };
  }

  const ScratchStore scratch_;
  const core::StateDict state_;
  std::vector<core::LoadRequest> requests_;
  uint64_t bytes_ = 0;
  uint64_t done_bytes_ = 0;
  ProgressLine line_{"tuning"};
};

const char* EngineName(const kv::IoOptions& io) { return io.uring ? "uring" : "threads"; }

std::string Describe(const kv::IoOptions& io) {
  return fmt::format("blocks of {}, {} in flight, {}, {}", HumanBytes(io.block_bytes),
                     io.queue_depth, io.uring ? "io_uring" : "threads",
                     io.direct ? "O_DIRECT" : "through the page cache");
}

std::string EnvironmentVariables(const kv::IoOptions& io) {
  return fmt::format(
      "CAIRN_IO_BLOCK_BYTES={} CAIRN_IO_DEPTH={} CAIRN_IO_ENGINE={} CAIRN_IO_DIRECT={}",
      io.block_bytes, io.queue_depth, EngineName(io), io.direct ? 1 : 0);
}

std::string Initializer(const kv::IoOptions& io) {
  return fmt::format(
      "options.io = {{.direct = {}, .uring = {}, .block_bytes = {}, .queue_depth = {}}};",
      io.direct, io.uring, io.block_bytes, io.queue_depth);
}

Json SettingsJson(const kv::IoOptions& io) {
  return {{"block_bytes", io.block_bytes},
          {"queue_depth", io.queue_depth},
          {"engine", EngineName(io)},
          {"direct", io.direct}};
}

/// Returns the fastest figure over all trials, for saves and loads separately.
TuneFigures Fastest(const std::vector<TuneTrial>& trials) {
  TuneFigures fastest = Summarize(trials.front().runs);
  for (const TuneTrial& trial : trials) {
    const TuneFigures figures = Summarize(trial.runs);
    fastest.save_seconds = std::min(fastest.save_seconds, figures.save_seconds);
    fastest.load_seconds = std::min(fastest.load_seconds, figures.load_seconds);
    fastest.both_seconds = std::min(fastest.both_seconds, figures.both_seconds);
  }
  return fastest;
}

double DefaultsOfBest(const TuneResult& result) {
  return Summarize(result.best.runs).both_seconds / Summarize(result.defaults.runs).both_seconds;
}

void WriteTable(const TuneResult& result, uint64_t bytes, Output& out) {
  Table table(&out, {{"BLOCK", Align::kRight},
                     {"DEPTH", Align::kRight},
                     {"ENGINE"},
                     {"DIRECT"},
                     {"RUNS", Align::kRight},
                     {"SAVE", Align::kRight},
                     {"OF BEST", Align::kRight},
                     {"LOAD", Align::kRight},
                     {"OF BEST", Align::kRight},
                     {"BOTH OF BEST", Align::kRight},
                     {"PEAK MEMORY", Align::kRight},
                     {"NOTE"}});
  const TuneFigures fastest = Fastest(result.trials);
  for (const TuneTrial& trial : result.trials) {
    const TuneFigures figures = Summarize(trial.runs);
    std::string note = SameSettings(trial.io, result.best.io) ? "best" : "";
    if (SameSettings(trial.io, result.defaults.io)) note += note.empty() ? "default" : ", default";
    table.Add({HumanBytes(trial.io.block_bytes), fmt::format("{}", trial.io.queue_depth),
               EngineName(trial.io), trial.io.direct ? "yes" : "no",
               fmt::format("{}", trial.runs.size()), HumanRate(bytes, figures.save_seconds),
               fmt::format("{:.2f}", fastest.save_seconds / figures.save_seconds),
               HumanRate(bytes, figures.load_seconds),
               fmt::format("{:.2f}", fastest.load_seconds / figures.load_seconds),
               fmt::format("{:.2f}", fastest.both_seconds / figures.both_seconds),
               HumanBytes(figures.peak_beyond_tensors_bytes), note});
  }
  table.Finish();
}

void WriteAdvice(const TuneResult& result, Output& out) {
  out.WriteLine("");
  out.WriteLine(out.Styled(Style::kBold, "best: " + Describe(result.best.io)));
  const double ratio = DefaultsOfBest(result);
  if (SameSettings(result.best.io, result.defaults.io)) {
    out.WriteLine(fmt::format(
        "The defaults are fine here: in {} runs in turns the best alternative was not better.",
        result.best.runs.size()));
    return;
  }
  out.WriteLine(fmt::format(
      "In {} runs each, in turns, the defaults reached {:.2f} of the best (save {:.2f}, load "
      "{:.2f}).",
      result.best.runs.size(), ratio,
      Summarize(result.best.runs).save_seconds / Summarize(result.defaults.runs).save_seconds,
      Summarize(result.best.runs).load_seconds / Summarize(result.defaults.runs).load_seconds));
  if (ratio >= kGoodRatio) out.WriteLine("The defaults are fine here.");
  out.WriteLine("To use the best in Python and the programs:");
  out.WriteLine("  export " + EnvironmentVariables(result.best.io));
  out.WriteLine("In C++, with kv::StoreOptions options:");
  out.WriteLine("  " + Initializer(result.best.io));
}

Json FiguresJson(const std::vector<TuneRun>& runs, uint64_t bytes) {
  const TuneFigures figures = Summarize(runs);
  return {{"runs", runs.size()},
          {"save_seconds", figures.save_seconds},
          {"save_bytes_per_second", static_cast<double>(bytes) / figures.save_seconds},
          {"load_seconds", figures.load_seconds},
          {"load_bytes_per_second", static_cast<double>(bytes) / figures.load_seconds},
          {"peak_beyond_tensors_bytes", figures.peak_beyond_tensors_bytes}};
}

void WriteJsonLines(const TuneResult& result, uint64_t bytes, Output& out) {
  const TuneFigures fastest = Fastest(result.trials);
  for (const TuneTrial& trial : result.trials) {
    Json row = {{"verb", "tune"}, {"what", "settings"}, {"bytes", bytes}};
    row.Merge(SettingsJson(trial.io));
    row.Merge(FiguresJson(trial.runs, bytes));
    row.Merge({{"both_of_best", fastest.both_seconds / Summarize(trial.runs).both_seconds},
               {"default", SameSettings(trial.io, result.defaults.io)},
               {"best", SameSettings(trial.io, result.best.io)}});
    out.WriteLine(row.Line());
  }
  Json best = SettingsJson(result.best.io);
  best.Merge(FiguresJson(result.best.runs, bytes));
  Json defaults = SettingsJson(result.defaults.io);
  defaults.Merge(FiguresJson(result.defaults.runs, bytes));
  const double ratio = DefaultsOfBest(result);
  const Json verdict = {{"verb", "tune"},
                        {"what", "verdict"},
                        {"bytes", bytes},
                        {"best", best},
                        {"defaults", defaults},
                        {"defaults_of_best", ratio},
                        {"defaults_are_fine", ratio >= kGoodRatio},
                        {"environment", EnvironmentVariables(result.best.io)}};
  out.WriteLine(verdict.Line());
}

/// Searches for the best settings. The progress line is removed when this function returns.
Result<TuneResult> Search(const BenchOptions& options) {
  const TuneLimits limits{.uring = KernelGrantsUring(), .direct = GrantsDirect(options.directory)};
  if (!limits.uring)
    Warn("kv-bench", "this kernel does not support io_uring; only threads are tried");
  if (!limits.direct)
    Warn("kv-bench", "--dir does not support O_DIRECT; only the page cache is tried");
  CAIRN_TRY_ASSIGN(auto plan, PlanModel(options.bytes));
  CAIRN_TRY_ASSIGN(const ModelMemory model, ModelMemory::Allocate(std::move(plan)));
  model.FillAll(1);
  Tuner tuner(options.directory, model);
  return SearchSettings(limits, [&](const kv::IoOptions& io) { return tuner.RunOnce(io); });
}

}  // namespace

Result<void> BenchTune(const BenchOptions& options, bool json, Output& out) {
  CAIRN_TRY_ASSIGN(const TuneResult result, Search(options));
  if (json) {
    WriteJsonLines(result, options.bytes, out);
  } else {
    WriteTable(result, options.bytes, out);
    WriteAdvice(result, out);
  }
  return {};
}

}  // namespace cairn::tools
