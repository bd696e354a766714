// `kv-dump history`: one row per step at which a key differs from the step before.

#include "tools/dump/history.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

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
#include "tools/dump/statistics_text.h"

namespace cairn::tools {
namespace {

using OptionalStatistics = std::optional<core::StoredStatistics>;

/// Returns what the saves recorded about the values of each version.
Result<std::vector<OptionalStatistics>> FindStatistics(
    const OpenedStore& opened, const std::string& fqn,
    const std::vector<core::KeyVersion>& versions) {
  std::vector<OptionalStatistics> statistics(versions.size());
  for (size_t i = 0; i < versions.size(); ++i) {
    const core::KeyChange& change = versions[i].change;
    if (!change.is_tensor || change.kind == core::KeyChange::Kind::kRemoved) continue;
    CAIRN_TRY_ASSIGN(const core::TensorInfo tensor,
                     opened.store->FindTensor(versions[i].step, fqn));
    CAIRN_TRY_ASSIGN(auto found, opened.store->FindStatistics(versions[i].step, {&tensor, 1}));
    statistics[i] = found.front();
  }
  return statistics;
}

Json VersionJson(const core::KeyVersion& version, const OptionalStatistics& statistics) {
  const core::KeyChange& change = version.change;
  Json json = {{"step", version.step.step},
               {"created", IsoTime(version.step.created_unix_ns)},
               {"change", KindName(change.kind)},
               {"kind", change.is_tensor ? "tensor" : "value"},
               {"changed_bytes", change.changed_bytes},
               {"total_bytes", change.total_bytes}};
  if (!change.detail.empty()) json.Set("detail", JsonText(change.detail));
  if (statistics) json.Set("statistics", StatisticsJson(*statistics));
  return json;
}

}  // namespace

Result<int> DumpHistory(const DumpRun& run, const std::string& store, const std::string& fqn) {
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenWithoutStep(store, "history"));
  CAIRN_TRY_ASSIGN(const auto versions, opened.store->History(fqn));
  CAIRN_TRY_ASSIGN(const auto statistics, FindStatistics(opened, fqn, versions));
  if (run.json) {
    JsonList list(run.out, {{"store", StoreText(opened)}, {"fqn", JsonText(fqn)}}, "versions");
    for (size_t i = 0; i < versions.size(); ++i) {
      list.Add(VersionJson(versions[i], statistics[i]));
    }
    list.Finish();
    return kExitSuccess;
  }
  std::vector<Column> columns = {{"STEP", Align::kRight},
                                 {"SAVED"},
                                 {"CHANGE"},
                                 {"BYTES", Align::kRight},
                                 {"OF", Align::kRight},
                                 {"DETAIL", Align::kLeft, true}};
  const bool has_statistics = std::ranges::any_of(
      statistics, [](const OptionalStatistics& one) { return one.has_value(); });
  if (has_statistics) AppendStatisticsColumns(columns);
  Table table(run.out, std::move(columns));
  for (size_t i = 0; i < versions.size(); ++i) {
    const core::KeyVersion& version = versions[i];
    const core::KeyChange& change = version.change;
    std::vector<Cell> cells = {fmt::to_string(version.step.step),
                               LocalTime(version.step.created_unix_ns),
                               KindCell(change.kind),
                               change.is_tensor ? HumanBytes(change.changed_bytes) : "value",
                               change.is_tensor ? HumanBytes(change.total_bytes) : "",
                               EscapeText(change.detail)};
    if (has_statistics) AppendStatisticsCells(statistics[i], cells);
    table.Add(std::move(cells));
  }
  table.Finish();
  return kExitSuccess;
}

}  // namespace cairn::tools
