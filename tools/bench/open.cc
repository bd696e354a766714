// kv-bench open: how long a new process takes to open a large store and read its first key.

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/load/load_options.h"
#include "kv/read/snapshot.h"
#include "tools/bench/measure.h"
#include "tools/bench/verbs.h"
#include "tools/common/json.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Bars of the reads of the first key, in seconds.
constexpr double kColdBar = 6e-3;
constexpr double kWarmBar = 2e-3;
constexpr double kManyStepsBar = 1.2;  // multiple of the time with a store of one step

// --- Stores of many chunks or steps, which take long to create and are kept for later runs

/// A store in --dir.
struct KeptStore {
  std::string name;          // folder below --dir
  uint64_t small_steps = 0;  // steps with one chunk each, before the large one
  uint64_t chunks = 1;       // tensors of the large step, of 100 chunks of 64 bytes each

  uint64_t large_step() const { return small_steps + 1; }
};

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

/// Returns the directory of the store, and creates it if no earlier run has. kFailedPrecondition:
/// there is something else.
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

// --- Opens in new processes

/// Opens the store in a new process of this program, and returns the JSON object that it prints.
Result<Json> RunChild(const std::string& directory) {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return Fail(SystemError(error.value(), "finding this program", "/proc/self/exe"));
  const std::string command =
      fmt::format("exec {} open-child {}", ShellWord(program.string()), ShellWord(directory));
  std::FILE* const pipe = popen(command.c_str(), "re");
  if (pipe == nullptr) return Fail(SystemError(errno, "starting a program"));
  std::string output;
  char buffer[4096];
  for (size_t got = 1; got > 0; output.append(buffer, got)) {
    got = std::fread(buffer, 1, sizeof(buffer), pipe);
  }
  if (pclose(pipe) == 0) return Json::parse(output);
  return Fail(ErrorCode::kUnavailable, "the new process could not read the store (see above)");
}

/// A store to open, and how its rows are named.
struct Opened {
  std::string directory;
  std::string suffix;
  uint64_t steps = 1;
};

Result<BenchRow> OpenOnce(const BenchOptions& options, const Opened& opened, bool cold,
                          uint64_t run) {
  const auto begin = Clock::now();
  CAIRN_TRY_ASSIGN(const Json found, RunChild(opened.directory));
  const double wall_seconds = SecondsSince(begin);  // from before exec until the process has ended
  const double open_seconds = found["open_seconds"];
  const double read_seconds = found["read_seconds"];
  BenchRow row{.run = run};
  row.what = fmt::format("{} open{}", cold ? "cold" : "warm", opened.suffix);
  row.measured.seconds = open_seconds + read_seconds;
  row.measured.cpu_seconds = found["cpu_seconds"];
  row.measured.peak_resident_bytes = found["peak_resident_bytes"];
  row.measured.peak_beyond_tensors_bytes = found["peak_beyond_bytes"];
  row.measured.peak_is_of_run = true;
  row.extra = {{"first_key_bytes", found["first_key_bytes"]},
               {"chunks", options.chunks},
               {"steps", opened.steps},
               {"fresh_process", true},
               {"cold", cold},
               {"open_seconds", open_seconds},
               {"first_read_seconds", read_seconds},
               {"process_wall_seconds", wall_seconds}};
  row.note = fmt::format("new process, {} chunks: open {}, first key {}; process {}",
                         GroupedCount(options.chunks), HumanSeconds(open_seconds),
                         HumanSeconds(read_seconds), HumanSeconds(wall_seconds));
  return row;
}

void AddBars(const std::string& cache, double seconds_bar, const std::string& many_steps,
             BenchReport& report) {
  const std::string what = cache + " open";
  report.AddTimeBar(what, seconds_bar);
  report.AddTimeBar(what + many_steps, what, kManyStepsBar);
}

}  // namespace

Result<void> BenchOpenChild(const std::string& directory, Output& out) {
  const Meter meter;
  const auto begin = Clock::now();
  CAIRN_TRY_ASSIGN(const auto store, core::CheckpointStore::Open(directory, kv::OpenMode::kRead));
  CAIRN_TRY_ASSIGN(const auto snapshot, store->kv().Latest());
  CAIRN_TRY_ASSIGN(const kv::StepInfo step, snapshot->FindStep(std::nullopt));
  const double open_seconds = SecondsSince(begin);
  CAIRN_TRY_ASSIGN(const core::TensorInfo tensor, store->FindTensor(step, KeyOf(0)));
  std::vector<std::byte> bytes(tensor.nbytes);
  const auto request =
      core::RowMajorRequest(tensor.fqn, tensor.dtype, core::WholeBox(tensor.shape), bytes.data());
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
  for (uint64_t run = 1; run <= options.repeat; ++run) {
    for (const bool cold : {true, false}) {
      for (const Opened& opened : stores) {
        // Evicting many files also displaces what the processor has cached. So it precedes each
        // cold open, regardless of the store. An open that is not measured precedes each warm one.
        if (cold) {
          for (const Opened& other : stores) CAIRN_TRY(EvictFromPageCache(other.directory));
        } else {
          CAIRN_TRY(OpenOnce(options, opened, cold, run));
        }
        CAIRN_TRY_ASSIGN(const BenchRow row, OpenOnce(options, opened, cold, run));
        report.Add(row);
      }
    }
  }
  AddBars("cold", kColdBar, many_steps, report);
  AddBars("warm", kWarmBar, many_steps, report);
  return {};
}

}  // namespace cairn::tools
