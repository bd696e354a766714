// kv-bench open: how long a new process takes to open a large store and read its first key.

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <utility>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/load/load_options.h"
#include "kv/read/snapshot.h"
#include "tools/bench/child_process.h"
#include "tools/bench/kept_store.h"
#include "tools/bench/page_cache.h"
#include "tools/bench/table_limit.h"
#include "tools/bench/verbs.h"
#include "tools/common/quantities.h"

namespace cairn::tools {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Bars of the reads of the first key, in seconds.
constexpr double kColdBar = 6e-3;
constexpr double kWarmBar = 2e-3;
constexpr double kTableBar = 2.0;      // multiple of SstFileReader's time
constexpr double kManyStepsBar = 1.2;  // multiple of the time with a store of one step

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct ChildTimes {
  double wall_seconds = 0;  // from before exec until the process has ended
  double open_seconds = 0;
  double read_seconds = 0;
  uint64_t first_key_bytes = 0;
  double cpu_seconds = 0;
  uint64_t peak_resident_bytes = 0;
  uint64_t peak_beyond_bytes = 0;
};

Result<std::string> RunOpenChild(std::vector<std::string> words) {
  CAIRN_TRY_ASSIGN(const FinishedChild child,
                   RunChild("/proc/self/exe", std::move(words), ChildOutput::kStandardOutput));
  if (child.status == 0) return child.output;
  return Fail(ErrorCode::kUnavailable, "the new process could not read the store (see above)");
}

Result<ChildTimes> OpenInNewProcess(const std::string& directory) {
  const auto begin = Clock::now();
  CAIRN_TRY_ASSIGN(const std::string output, RunOpenChild({"kv-bench", "open-child", directory}));
  ChildTimes times{.wall_seconds = SecondsSince(begin)};
  const auto number = [&](const char* name) {
    return FindJsonNumber(output, fmt::format("/{}", name)).value_or(0);
  };
  times.open_seconds = number("open_seconds");
  times.read_seconds = number("read_seconds");
  times.first_key_bytes = static_cast<uint64_t>(number("first_key_bytes"));
  times.cpu_seconds = number("cpu_seconds");
  times.peak_resident_bytes = static_cast<uint64_t>(number("peak_resident_bytes"));
  times.peak_beyond_bytes = static_cast<uint64_t>(number("peak_beyond_bytes"));
  return times;
}

/// A store to open, and how its rows are named.
struct Opened {
  std::string directory;
  std::string suffix;
  uint64_t steps = 1;
};

Result<BenchRow> OpenOnce(const BenchOptions& options, const Opened& opened, bool cold,
                          uint64_t run) {
  CAIRN_TRY_ASSIGN(const ChildTimes times, OpenInNewProcess(opened.directory));
  BenchRow row{.verb = "open", .run = run};
  row.what = fmt::format("{} open{}", cold ? "cold" : "warm", opened.suffix);
  row.rate_matters = false;
  row.bytes = times.first_key_bytes;
  row.measured.seconds = times.open_seconds + times.read_seconds;
  row.measured.cpu_seconds = times.cpu_seconds;
  row.measured.peak_resident_bytes = times.peak_resident_bytes;
  row.measured.peak_beyond_tensors_bytes = times.peak_beyond_bytes;
  row.measured.peak_is_of_run = true;
  row.extra = {{"chunks", options.chunks},
               {"steps", opened.steps},
               {"fresh_process", true},
               {"cold", cold},
               {"open_seconds", times.open_seconds},
               {"first_read_seconds", times.read_seconds},
               {"process_wall_seconds", times.wall_seconds}};
  row.note = fmt::format("new process, {} chunks: open {}, first key {}; process {}",
                         GroupedCount(options.chunks), HumanSeconds(times.open_seconds),
                         HumanSeconds(times.read_seconds), HumanSeconds(times.wall_seconds));
  return row;
}

Result<BenchRow> OpenTableOnce(const std::string& table, bool cold, uint64_t run) {
  CAIRN_TRY_ASSIGN(const std::string output, RunOpenChild({"kv-bench", "table-child", table}));
  BenchRow row{.verb = "open", .what = cold ? "cold table" : "warm table", .run = run};
  row.rate_matters = false;
  row.in_this_process = false;
  row.measured.seconds = FindJsonNumber(output, "/seconds").value_or(0);
  row.note = "new process, SstFileReader alone: opens the table and seeks its first record";
  return row;
}

void AddBars(const std::string& cache, double seconds_bar, const std::string& many_steps,
             BenchReport& report) {
  const std::string what = cache + " open";
  report.AddTimeBar("open", what, seconds_bar);
  report.AddTimeRatioBar("open", what, cache + " table", kTableBar);
  report.AddTimeRatioBar("open", what + many_steps, what, kManyStepsBar);
}

}  // namespace

Result<void> BenchOpenChild(const std::string& directory, Output& out) {
  const Meter meter;
  const auto begin = Clock::now();
  CAIRN_TRY_ASSIGN(const auto store, core::CheckpointStore::Open(directory, kv::OpenMode::kRead));
  CAIRN_TRY_ASSIGN(const auto snapshot, store->kv().Latest());
  CAIRN_TRY_ASSIGN(const kv::StepInfo step, snapshot->FindStep(std::nullopt));
  const double open_seconds = SecondsSince(begin);
  CAIRN_TRY_ASSIGN(const core::TensorInfo tensor, store->FindTensor(step, FirstKey()));
  std::vector<std::byte> bytes(tensor.nbytes);
  const core::LoadRequest request{
      tensor.fqn, core::WholeBox(tensor.shape), {tensor.dtype, tensor.shape, {}, bytes.data()}};
  CAIRN_TRY(store->Load(step, {&request, 1}));
  const double read_seconds = SecondsSince(begin) - open_seconds;
  const Measurement measured = meter.Stop();
  WriteJson(out, {{"open_seconds", open_seconds},
                  {"read_seconds", read_seconds},
                  {"first_key_bytes", tensor.nbytes},
                  {"cpu_seconds", measured.cpu_seconds},
                  {"peak_resident_bytes", measured.peak_resident_bytes},
                  {"peak_beyond_bytes", measured.peak_beyond_tensors_bytes}});
  return {};
}

Result<void> BenchTableChild(const std::string& path, Output& out) {
  CAIRN_TRY_ASSIGN(const double seconds, OpenTableAlone(path));
  WriteJson(out, {{"seconds", seconds}});
  return {};
}

Result<void> BenchOpen(const BenchOptions& options, BenchReport& report) {
  std::vector<Opened> stores(1);
  KeptStore wanted{.name = fmt::format("open-{}", options.chunks), .chunks = options.chunks};
  CAIRN_TRY_ASSIGN(stores[0].directory, FindOrMakeStore(options, wanted));
  const std::string many_steps = fmt::format(", {} steps", GroupedCount(options.steps));
  if (options.steps > 1) {
    wanted.name += fmt::format("-{}", options.steps);
    wanted.small_steps = options.steps - 1;
    CAIRN_TRY_ASSIGN(const std::string directory, FindOrMakeStore(options, wanted));
    stores.push_back({directory, many_steps, options.steps});
  }
  CAIRN_TRY_ASSIGN(const std::string table, FindLargestTable(stores[0].directory));
  // Evicting many files also displaces what the processor has cached. So it precedes each cold
  // open, regardless of the store. An open that is not measured precedes each warm one.
  const auto measure = [&](bool cold,
                           const std::function<Result<BenchRow>()>& open) -> Result<void> {
    if (cold) {
      for (const Opened& opened : stores) CAIRN_TRY(EvictFromPageCache(opened.directory));
    } else {
      CAIRN_TRY(open());
    }
    CAIRN_TRY_ASSIGN(const BenchRow row, open());
    report.Add(row);
    return {};
  };
  for (uint64_t run = 1; run <= options.repeat; ++run) {
    for (const bool cold : {true, false}) {
      if (cold && options.warm) continue;
      for (const Opened& opened : stores) {
        CAIRN_TRY(measure(cold, [&] { return OpenOnce(options, opened, cold, run); }));
      }
      CAIRN_TRY(measure(cold, [&] { return OpenTableOnce(table, cold, run); }));
    }
  }
  AddBars("cold", kColdBar, many_steps, report);
  AddBars("warm", kWarmBar, many_steps, report);
  return {};
}

}  // namespace cairn::tools
