// kv-bench diff: `kv-dump diff` of two steps of many chunks that share all but 1 %.

#include "tools/bench/diff.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "tools/bench/child_process.h"
#include "tools/bench/kept_store.h"
#include "tools/bench/page_cache.h"
#include "tools/common/json.h"
#include "tools/common/quantities.h"

namespace cairn::tools {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr double kBarSeconds = 50e-3;
constexpr int kExitedWith1 = 1 << 8;  // as waitpid returns it: the steps differ

Result<BenchRow> DiffOnce(const BenchOptions& options, const std::string& directory, uint64_t run) {
  std::error_code error;
  const fs::path dump = fs::read_symlink("/proc/self/exe", error).parent_path() / "kv-dump";
  const auto begin = Clock::now();
  CAIRN_TRY_ASSIGN(
      const FinishedChild child,
      RunChild(dump.string(), {"kv-dump", "diff", directory + "@1", directory + "@2", "--json"},
               ChildOutput::kStandardOutput));
  BenchRow row{.verb = "diff", .run = run, .in_this_process = false, .rate_matters = false};
  row.measured.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const auto unchanged = FindJsonNumber(child.output, "/unchanged_keys");
  if (child.status != kExitedWith1 || !unchanged) {
    return Fail(ErrorCode::kUnavailable, "kv-dump could not compare the steps (see above)");
  }
  row.extra = {{"chunks", options.chunks}, {"unchanged_keys", *unchanged}};
  row.note = fmt::format("new process, {} chunks per step", GroupedCount(options.chunks));
  return row;
}

}  // namespace

Result<void> BenchDiff(const BenchOptions& options, BenchReport& report) {
  const KeptStore wanted{.name = fmt::format("diff-{}", options.chunks),
                         .chunks = options.chunks,
                         .changed_step = true};
  CAIRN_TRY_ASSIGN(const std::string directory, FindOrMakeStore(options, wanted));
  for (uint64_t run = 1; run <= options.repeat; ++run) {
    for (const bool cold : {true, false}) {
      if (cold && options.warm) continue;
      if (cold) CAIRN_TRY(EvictFromPageCache(directory));
      CAIRN_TRY_ASSIGN(BenchRow row, DiffOnce(options, directory, run));
      row.what = cold ? "cold diff" : "warm diff";
      report.Add(row);
    }
  }
  report.AddTimeBar("diff", "cold diff", kBarSeconds);
  report.AddTimeBar("diff", "warm diff", kBarSeconds);
  return {};
}

}  // namespace cairn::tools
