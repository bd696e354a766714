// `kv-dump history`: one row per step at which a key differs from the step before.

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "core/inspect/compare.h"
#include "core/inspect/stored_statistics.h"
#include "tools/common/exit_status.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"
#include "tools/common/timestamps.h"
#include "tools/dump/contents_json.h"
#include "tools/dump/opened_store.h"
#include "tools/dump/rows.h"
#include "tools/dump/statistics_text.h"
#include "tools/dump/verbs.h"

namespace cairn::tools {
namespace {

using OptionalStatistics = std::optional<core::StoredStatistics>;

std::vector<Column> VersionColumns(bool has_statistics) {
  std::vector<Column> columns = {Right("STEP"),  Left("SAVED"), Left("CHANGE"),
                                 Right("BYTES"), Right("OF"),   Flexible("DETAIL")};
  if (has_statistics) AppendStatisticsColumns(columns);
  return columns;
}

std::vector<Cell> VersionCells(const core::KeyVersion& version) {
  const core::KeyChange& change = version.change;
  return {fmt::to_string(version.step.step),
          LocalTime(version.step.created_unix_ns),
          ChangeCell(change),
          change.is_tensor ? HumanBytes(change.changed_bytes) : "value",
          change.is_tensor ? HumanBytes(change.total_bytes) : "",
          EscapeText(change.detail)};
}

Json VersionJson(const core::KeyVersion& version, const OptionalStatistics& statistics) {
  Json json = {{"step", version.step.step}, {"created", IsoTime(version.step.created_unix_ns)}};
  json.update(ChangeJson(version.change));
  if (statistics) json["statistics"] = StatisticsJson(*statistics);
  return json;
}

}  // namespace

Result<int> DumpHistory(const DumpRun& run) {
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenWithoutStep(run.address, "history"));
  const std::string& fqn = run.second;
  std::optional<Rows> rows;  // begin with the first version: there may not be such a key
  bool has_statistics = false;
  auto found = core::FindVersions(
      opened.store->kv(), fqn, [&](const core::KeyVersion& version) -> Result<void> {
        CAIRN_TRY_ASSIGN(const OptionalStatistics statistics, FindStatistics(opened, version));
        // Columns for statistics begin, in a new table, with the first version that has some.
        if (!rows || (!run.json && statistics && !has_statistics)) {
          if (rows) CAIRN_TRY(rows->Finish());
          has_statistics = statistics.has_value();
          rows.emplace(run, VersionColumns(has_statistics),
                       Json{{"store", StoreText(opened)}, {"fqn", JsonText(fqn)}}, "versions");
        }
        rows->Add(
            [&] {
              std::vector<Cell> cells = VersionCells(version);
              if (has_statistics) AppendStatisticsCells(statistics, cells);
              return cells;
            },
            [&] { return VersionJson(version, statistics); });
        return {};
      });
  if (rows) found = rows->Finish(std::move(found));
  CAIRN_TRY(found);
  return kExitSuccess;
}

}  // namespace cairn::tools
