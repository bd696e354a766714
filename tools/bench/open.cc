// kv-bench open: how long a new process takes to open a large store and read its first key.

#include "tools/bench/open.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "core/checkpoint_store.h"
#include "core/load/load_options.h"
#include "kv/snapshot.h"
#include "tools/bench/child_process.h"
#include "tools/bench/page_cache.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"

namespace cairn::tools {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kChunkBytes = 64;
constexpr uint64_t kChunksPerTensor = 100;
constexpr uint64_t kRowFloats = kChunkBytes / sizeof(float);

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::string FirstKey() { return "layer.000000.weight"; }

/// Saves tensors of 100 rows, with one chunk per row, until there are `chunks` chunks.
Result<void> MakeStore(const std::string& directory, uint64_t chunks) {
  const uint64_t tensors = (chunks + kChunksPerTensor - 1) / kChunksPerTensor;
  std::vector<float> values(tensors * kChunksPerTensor * kRowFloats);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  core::StateDict state;
  auto root = state.root();
  uint64_t left = chunks;
  for (uint64_t i = 0; i < tensors; ++i) {
    const uint64_t rows = std::min(left, kChunksPerTensor);
    left -= rows;
    const float* data = values.data() + i * kChunksPerTensor * kRowFloats;
    root.Tensor(
        fmt::format("layer.{:06}.weight", i),
        {core::DType::kFloat32, {rows, kRowFloats}, {}, reinterpret_cast<const std::byte*>(data)});
  }
  ProgressLine progress("creating the store");
  CAIRN_TRY_ASSIGN(const auto store, core::CheckpointStore::Open(directory, kv::OpenMode::kWrite));
  core::SaveOptions save{
      .incremental = false, .chunk_bytes = kChunkBytes, .progress = progress.callback()};
  CAIRN_TRY(store->Save(1, state, save));
  return store->Close();
}

/// Returns the store of an earlier run if it is complete, otherwise a new one.
Result<std::string> FindOrMakeStore(const BenchOptions& options) {
  const std::string directory =
      (fs::path(options.directory) / fmt::format("open-{}", options.chunks)).string();
  {
    const auto store = core::CheckpointStore::Open(directory, kv::OpenMode::kRead);
    if (store) {
      const auto steps = (*store)->Steps();
      if (steps && steps->size() == 1 && steps->front().chunk_count == options.chunks) {
        return directory;
      }
    }
  }
  if (fs::exists(directory)) {
    return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                      .message = "exists but is not a store that this benchmark created; remove it",
                      .file = directory});
  }
  CAIRN_TRY(MakeStore(directory, options.chunks));
  return directory;
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

Result<ChildTimes> OpenInNewProcess(const std::string& directory) {
  const auto begin = Clock::now();
  CAIRN_TRY_ASSIGN(const FinishedChild child,
                   RunChild("/proc/self/exe", {"kv-bench", "open-child", directory},
                            ChildOutput::kStandardOutput));
  ChildTimes times{.wall_seconds = SecondsSince(begin)};
  if (child.status != 0 || !FindJsonNumber(child.output, "/open_seconds")) {
    return Fail(ErrorCode::kUnavailable, "the new process could not read the store (see above)");
  }
  const auto number = [&](const char* name) {
    return FindJsonNumber(child.output, fmt::format("/{}", name)).value_or(0);
  };
  times.open_seconds = number("open_seconds");
  times.read_seconds = number("read_seconds");
  times.first_key_bytes = static_cast<uint64_t>(number("first_key_bytes"));
  times.cpu_seconds = number("cpu_seconds");
  times.peak_resident_bytes = static_cast<uint64_t>(number("peak_resident_bytes"));
  times.peak_beyond_bytes = static_cast<uint64_t>(number("peak_beyond_bytes"));
  return times;
}

Result<BenchRow> OpenOnce(const BenchOptions& options, const std::string& directory, bool cold,
                          uint64_t run) {
  if (cold) CAIRN_TRY(EvictFromPageCache(directory));
  CAIRN_TRY_ASSIGN(const ChildTimes times, OpenInNewProcess(directory));
  BenchRow row{.verb = "open", .what = cold ? "cold open" : "warm open", .run = run};
  row.rate_matters = false;
  row.bytes = times.first_key_bytes;
  row.measured.seconds = times.open_seconds + times.read_seconds;
  row.measured.cpu_seconds = times.cpu_seconds;
  row.measured.peak_resident_bytes = times.peak_resident_bytes;
  row.measured.peak_beyond_tensors_bytes = times.peak_beyond_bytes;
  row.measured.peak_is_of_run = true;
  row.extra = {{"chunks", options.chunks},
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

Result<void> BenchOpen(const BenchOptions& options, BenchReport& report) {
  CAIRN_TRY_ASSIGN(const std::string directory, FindOrMakeStore(options));
  for (uint64_t run = 1; run <= options.repeat; ++run) {
    if (!options.warm) {
      CAIRN_TRY_ASSIGN(const BenchRow cold, OpenOnce(options, directory, true, run));
      report.Add(cold);
    }
    CAIRN_TRY_ASSIGN(const BenchRow warm, OpenOnce(options, directory, false, run));
    report.Add(warm);
  }
  return {};
}

}  // namespace cairn::tools
