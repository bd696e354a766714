// `kv-admin statistics`: computes statistics that saves have not recorded.

#include <fmt/format.h>

#include "core/upkeep/add_statistics.h"
#include "kv/read/snapshot.h"
#include "tools/admin/verbs.h"
#include "tools/common/address.h"
#include "tools/common/exit_status.h"
#include "tools/common/json.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

struct StatisticsCommand {
  std::string address;  // STORE, STORE@STEP or STORE@{STEPS}
  bool json = false;
};

Result<void> AddStatistics(const StatisticsCommand& command, Output& out) {
  CAIRN_TRY_ASSIGN(StepsAddress address, ParseStepsAddress(command.address));
  CAIRN_TRY_ASSIGN(const auto store, OpenExisting(address.store));
  if (address.steps.empty()) {
    CAIRN_TRY_ASSIGN(const auto snapshot, store->kv().Latest());
    CAIRN_TRY_ASSIGN(const kv::StepInfo latest, snapshot->FindStep(std::nullopt));
    address.steps.push_back(latest.step);
  }
  ProgressLine progress("reading");
  CAIRN_TRY_ASSIGN(const core::AddStatisticsReport report,
                   core::AddStatistics(*store, address.steps, progress.callback()));
  progress.Clear();
  CAIRN_TRY(store->Close());
  if (command.json) {
    WriteJson(out, {{"store", JsonText(address.store)},
                    {"chunks", report.chunks},
                    {"read_bytes", report.bytes},
                    {"steps", report.steps}});
  } else if (report.chunks == 0) {
    out.WriteLine("nothing to do: all tensors have statistics");
  } else {
    out.WriteLine(fmt::format("computed statistics of {} ({}) for {}",
                              Plural(report.chunks, "chunk"), HumanBytes(report.bytes),
                              Plural(report.steps, "step")));
  }
  return {};
}

}  // namespace

Verb StatisticsVerb() {
  const auto command = std::make_shared<StatisticsCommand>();
  return {.name = "statistics",
          .usage = "statistics STORE[@STEP]",
          .summary = "Computes the statistics of values that saves have not recorded",
          .arguments = {Required("STORE[@STEP]", &command->address,
                                 "Store and step; @STEP,STEP,... or @{FIRST..LAST} for several; "
                                 "without it the latest step"),
                        JsonArgument(command->json)},
          .examples = {"kv-admin statistics runs/gpt", "kv-admin statistics 'runs/gpt@{100,200}'"},
          .notes =
              "Reads the chunks that have no statistics, those that steps share once, and writes\n"
              "records, no payload. Nothing else of the steps changes. Each step is committed: if\n"
              "the command is stopped, a repeated one continues. The store must not be open for\n"
              "writing elsewhere.",
          .run = [command](Output& out) { return StatusOf(AddStatistics(*command, out)); }};
}

}  // namespace cairn::tools
