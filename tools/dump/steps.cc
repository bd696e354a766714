// `kv-dump steps`: one row per step.

#include "tools/dump/steps.h"

#include <fmt/format.h>

#include "kv/step_info.h"
#include "tools/common/exit_status.h"
#include "tools/common/quantities.h"
#include "tools/common/table.h"
#include "tools/common/timestamps.h"
#include "tools/dump/contents_json.h"
#include "tools/dump/opened_store.h"

namespace cairn::tools {

Result<int> DumpSteps(const DumpRun& run, const std::string& store) {
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenWithoutStep(store, "steps"));
  CAIRN_TRY_ASSIGN(const std::vector<kv::StepInfo> steps, opened.store->Steps());
  if (run.json) {
    JsonList list(run.out, {{"store", StoreText(opened)}}, "steps");
    for (const kv::StepInfo& step : steps) list.Add(StepJson(step));
    list.Finish();
    return kExitSuccess;
  }
  if (steps.empty()) PrintRemark(run, "No steps yet.");
  Table table(run.out, {{"STEP", Align::kRight},
                        {"SAVED"},
                        {"AGE", Align::kRight},
                        {"RANKS", Align::kRight},
                        {"KEYS", Align::kRight},
                        {"CHUNKS", Align::kRight},
                        {"REUSED", Align::kRight},
                        {"LOGICAL", Align::kRight},
                        {"NEW", Align::kRight},
                        {"BASE", Align::kRight}});
  const int64_t now = NowUnixNs();
  for (const kv::StepInfo& step : steps) {
    table.Add({fmt::to_string(step.step), LocalTime(step.created_unix_ns),
               Age(step.created_unix_ns, now), GroupedCount(step.world_size),
               GroupedCount(step.tensor_count + step.value_count), GroupedCount(step.chunk_count),
               Percent(step.reused_chunk_count, step.chunk_count), HumanBytes(step.logical_bytes),
               HumanBytes(step.written_bytes),
               step.base_step ? fmt::to_string(*step.base_step) : "-"});
  }
  table.Finish();
  return kExitSuccess;
}

}  // namespace cairn::tools
