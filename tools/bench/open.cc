// kv-bench open: how long until a process has a store of many chunks open and its first key read.

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "core/checkpoint_store.h"
#include "tools/bench/verbs.h"
#include "tools/common/progress.h"
#include "tools/common/text.h"

extern char** environ;

namespace cairn::tools::internal {
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

/// Tensors of 100 rows, a chunk a row, until there are `chunks` chunks.
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
  ProgressLine progress("making the store");
  CAIRN_TRY_ASSIGN(const auto store, core::CheckpointStore::Open(directory, kv::OpenMode::kWrite));
  core::SaveOptions save{
      .incremental = false, .chunk_bytes = kChunkBytes, .progress = progress.callback()};
  CAIRN_TRY(store->Save(1, state, save));
  return store->Close();
}

/// The store of an earlier run if it is whole, else a new one.
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
                      .message = "exists but is no store that this benchmark made; remove it",
                      .file = directory});
  }
  CAIRN_TRY(MakeStore(directory, options.chunks));
  return directory;
}

struct ChildRun {
  double wall_seconds = 0;  // from before exec until its end
  Json times;
};

Result<ChildRun> RunChild(const std::string& directory) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Fail(SystemError(errno, "making a pipe"));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::array<std::string, 3> words = {"kv-bench", "open-child", directory};
  std::array<char*, 4> arguments = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  const auto begin = Clock::now();
  pid_t child = 0;
  const int error =
      posix_spawn(&child, "/proc/self/exe", &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    return Fail(SystemError(error, "starting a fresh process"));
  }
  std::string output;
  char buffer[4096];
  for (ssize_t got = 0; (got = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    output.append(buffer, static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  ChildRun run{.wall_seconds = SecondsSince(begin), .times = Json::parse(output, nullptr, false)};
  if (status != 0 || run.times.is_discarded()) {
    return Fail(ErrorCode::kUnavailable, "the fresh process could not read the store (see above)");
  }
  return run;
}

Result<BenchRow> OpenOnce(const BenchOptions& options, const std::string& directory, bool cold,
                          uint64_t run) {
  if (cold) CAIRN_TRY(EvictFromPageCache(directory));
  CAIRN_TRY_ASSIGN(const ChildRun child, RunChild(directory));
  BenchRow row{.verb = "open", .what = cold ? "cold open" : "warm open", .run = run};
  row.rate_matters = false;
  const double open = child.times.value("open_seconds", 0.0);
  const double read = child.times.value("read_seconds", 0.0);
  row.bytes = child.times.value("first_key_bytes", uint64_t{0});
  row.measured.seconds = open + read;
  row.measured.cpu_seconds = child.times.value("cpu_seconds", 0.0);
  row.measured.peak_resident_bytes = child.times.value("peak_resident_bytes", uint64_t{0});
  row.measured.peak_beyond_tensors_bytes = child.times.value("peak_beyond_bytes", uint64_t{0});
  row.measured.peak_is_of_run = true;
  row.extra = {{"chunks", options.chunks},
               {"fresh_process", true},
               {"cold", cold},
               {"open_seconds", open},
               {"first_read_seconds", read},
               {"process_wall_seconds", child.wall_seconds}};
  row.note = fmt::format("fresh process, {} chunks: open {}, first key {}; process {}",
                         GroupedCount(options.chunks), HumanSeconds(open), HumanSeconds(read),
                         HumanSeconds(child.wall_seconds));
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

}  // namespace cairn::tools::internal
