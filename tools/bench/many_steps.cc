// kv-bench steps: commits of small steps in a store of many steps and in a new one.

#include "tools/bench/many_steps.h"

#include <fmt/format.h>

#include <map>
#include <string>
#include <vector>

#include "core/checkpoint_store.h"
#include "tools/bench/kept_store.h"
#include "tools/bench/median.h"
#include "tools/bench/saved_model.h"
#include "tools/common/quantities.h"

namespace cairn::tools {
namespace {

constexpr double kMoreSecondsBar = 10e-3;
constexpr uint64_t kMoreBytesBar = 64 << 10;

struct MeasuredStore {
  std::string what;
  StorePointer store;
  uint64_t next_step = 0;
  std::vector<double> written_bytes;
};

Result<MeasuredStore> Measured(std::string what, StorePointer store) {
  CAIRN_TRY_ASSIGN(const auto steps, store->StepNumbers());
  const uint64_t next_step = steps.empty() ? 1 : steps.back() + 1;
  return MeasuredStore{.what = std::move(what), .store = std::move(store), .next_step = next_step};
}

Result<void> CommitOnce(MeasuredStore& measured, uint64_t run, BenchReport& report) {
  BenchRow row{.verb = "steps", .what = measured.what, .run = run};
  row.rate_matters = false;
  const Meter meter;
  CAIRN_TRY(SaveSmallStep(*measured.store, measured.next_step));
  row.measured = meter.Stop();
  row.extra = {{"step", measured.next_step}};
  if (row.measured.device_written_bytes) {
    measured.written_bytes.push_back(static_cast<double>(*row.measured.device_written_bytes));
    row.note = fmt::format("{} written", HumanBytes(*row.measured.device_written_bytes));
  }
  ++measured.next_step;
  report.Add(row);
  return {};
}

void AddBars(const MeasuredStore& many, const MeasuredStore& fresh, BenchReport& report) {
  const auto seconds = report.MedianSeconds(many.what);
  const auto fresh_seconds = report.MedianSeconds(fresh.what);
  report.AddBar({.verb = "steps",
                 .what = fmt::format("additional time of a {}", many.what),
                 .reference = HumanSeconds(kMoreSecondsBar),
                 .figure = *seconds - *fresh_seconds,
                 .limit = kMoreSecondsBar,
                 .unit = "s",
                 .bar = 1});
  if (many.written_bytes.empty() || fresh.written_bytes.empty()) return;
  report.AddBar({.verb = "steps",
                 .what = fmt::format("additional bytes of a {}", many.what),
                 .reference = HumanBytes(kMoreBytesBar),
                 .figure = Median(many.written_bytes) - Median(fresh.written_bytes),
                 .limit = static_cast<double>(kMoreBytesBar),
                 .unit = "bytes",
                 .bar = 1});
}

}  // namespace

Result<void> BenchSteps(const BenchOptions& options, BenchReport& report) {
  const KeptStore wanted{.name = fmt::format("steps-{}", options.steps),
                         .small_steps = options.steps - 1};
  CAIRN_TRY_ASSIGN(const std::string directory, FindOrMakeStore(options, wanted));
  CAIRN_TRY_ASSIGN(StorePointer opened,
                   core::CheckpointStore::Open(directory, kv::OpenMode::kWrite));
  CAIRN_TRY_ASSIGN(
      MeasuredStore many,
      Measured(fmt::format("commit, {} steps", GroupedCount(options.steps)), std::move(opened)));
  const ScratchStore scratch(options.directory, "steps");
  CAIRN_TRY_ASSIGN(opened, OpenForWriting(scratch));
  CAIRN_TRY_ASSIGN(MeasuredStore fresh, Measured("commit, new store", std::move(opened)));
  // The first step of a process has no open tables and no file descriptors to use again.
  for (MeasuredStore* store : {&many, &fresh}) {
    CAIRN_TRY(SaveSmallStep(*store->store, store->next_step++));
  }
  for (uint64_t run = 1; run <= options.repeat; ++run) {
    CAIRN_TRY(CommitOnce(many, run, report));
    CAIRN_TRY(CommitOnce(fresh, run, report));
  }
  AddBars(many, fresh, report);
  CAIRN_TRY(many.store->Close());
  return fresh.store->Close();
}

}  // namespace cairn::tools
