// `kv-dump history`: one row per step at which a key differs from the step before.

#include "tools/dump/history.h"

#include <fmt/format.h>

#include "core/inspect/diff.h"
#include "tools/common/exit_status.h"
#include "tools/common/json.h"
#include "tools/common/quantities.h"
#include "tools/common/table.h"
#include "tools/common/text.h"
#include "tools/common/timestamps.h"
#include "tools/dump/change_kind.h"
#include "tools/dump/opened_store.h"
#include "tools/dump/run.h"

namespace cairn::tools {
namespace {

Json VersionJson(const core::KeyVersion& version) {
  const core::KeyChange& change = version.change;
  Json json = {{"step", version.step.step},
               {"created", IsoTime(version.step.created_unix_ns)},
               {"change", KindName(change.kind)},
               {"kind", change.is_tensor ? "tensor" : "value"},
               {"changed_bytes", change.changed_bytes},
               {"total_bytes", change.total_bytes}};
  if (!change.detail.empty()) json.Set("detail", JsonText(change.detail));
  return json;
}

}  // namespace

Result<int> DumpHistory(const DumpRun& run, const std::string& store, const std::string& fqn) {
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenWithoutStep(store, "history"));
  CAIRN_TRY_ASSIGN(const auto versions, opened.store->History(fqn));
  if (run.json) {
    JsonList list(run.out, {{"store", StoreText(opened)}, {"fqn", JsonText(fqn)}}, "versions");
    for (const core::KeyVersion& version : versions) list.Add(VersionJson(version));
    list.Finish();
    return kExitSuccess;
  }
  Table table(run.out, {{"STEP", Align::kRight},
                        {"SAVED"},
                        {"CHANGE"},
                        {"BYTES", Align::kRight},
                        {"OF", Align::kRight},
                        {"DETAIL", Align::kLeft, true}});
  for (const core::KeyVersion& version : versions) {
    const core::KeyChange& change = version.change;
    table.Add({fmt::to_string(version.step.step), LocalTime(version.step.created_unix_ns),
               KindCell(change.kind), change.is_tensor ? HumanBytes(change.changed_bytes) : "value",
               change.is_tensor ? HumanBytes(change.total_bytes) : "", EscapeText(change.detail)});
  }
  table.Finish();
  return kExitSuccess;
}

}  // namespace cairn::tools
