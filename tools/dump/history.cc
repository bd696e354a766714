// `kv-dump history`: one row per step at which a key differs from the step before.

#include <fmt/format.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "core/inspect/compare.h"
#include "core/inspect/stored_statistics.h"
#include "tools/common/exit_status.h"
#include "tools/common/json.h"
#include "tools/common/quantities.h"
#include "tools/common/table.h"
#include "tools/common/text.h"
#include "tools/common/timestamps.h"
#include "tools/dump/change_kind.h"
#include "tools/dump/opened_store.h"
#include "tools/dump/statistics_text.h"
#include "tools/dump/verbs.h"

namespace cairn::tools {
namespace {

using OptionalStatistics = std::optional<core::StoredStatistics>;

/// Returns what the save recorded about the values of a version.
Result<OptionalStatistics> FindStatistics(const OpenedStore& opened, const std::string& fqn,
                                          const core::KeyVersion& version) {
  const core::KeyChange& change = version.change;
  if (!change.is_tensor || change.kind == core::KeyChange::Kind::kRemoved) return std::nullopt;
  CAIRN_TRY_ASSIGN(const core::TensorInfo tensor, opened.store->FindTensor(version.step, fqn));
  CAIRN_TRY_ASSIGN(auto found,
                   core::FindStatistics(opened.store->kv(), version.step, {&tensor, 1}));
  return found.front();
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

/// Prints versions when they are found. Columns for statistics begin, in a new table, with the
/// first version that has some.
class VersionTable {
 public:
  explicit VersionTable(Output* out) : out_(out) {}

  void Add(const core::KeyVersion& version, const OptionalStatistics& statistics) {
    if (!table_ || (statistics && !has_statistics_)) Begin(statistics.has_value());
    const core::KeyChange& change = version.change;
    std::vector<Cell> cells = {fmt::to_string(version.step.step),
                               LocalTime(version.step.created_unix_ns),
                               KindCell(change.kind),
                               change.is_tensor ? HumanBytes(change.changed_bytes) : "value",
                               change.is_tensor ? HumanBytes(change.total_bytes) : "",
                               EscapeText(change.detail)};
    if (has_statistics_) AppendStatisticsCells(statistics, cells);
    table_->Add(cells);
  }
  void Finish() {
    if (table_) table_->Finish();
  }

 private:
  void Begin(bool has_statistics) {
    Finish();
    has_statistics_ = has_statistics;
    std::vector<Column> columns = {{"STEP", Align::kRight},
                                   {"SAVED"},
                                   {"CHANGE"},
                                   {"BYTES", Align::kRight},
                                   {"OF", Align::kRight},
                                   {"DETAIL", Align::kLeft, true}};
    if (has_statistics) AppendStatisticsColumns(columns);
    table_.emplace(out_, std::move(columns));
  }

  Output* out_;
  std::optional<Table> table_;
  bool has_statistics_ = false;
};

/// Finds the versions and their statistics.
Result<void> ForEachVersion(
    const OpenedStore& opened, const std::string& fqn,
    const std::function<void(const core::KeyVersion&, const OptionalStatistics&)>& visit) {
  return core::FindVersions(
      opened.store->kv(), fqn, [&](const core::KeyVersion& version) -> Result<void> {
        CAIRN_TRY_ASSIGN(const OptionalStatistics statistics, FindStatistics(opened, fqn, version));
        visit(version, statistics);
        return {};
      });
}

}  // namespace

Result<int> DumpHistory(const DumpRun& run, const std::string& store, const std::string& fqn) {
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenWithoutStep(store, "history"));
  if (run.json) {
    std::optional<JsonList> list;  // begins with the first version: there may be no such key
    auto found = ForEachVersion(
        opened, fqn, [&](const core::KeyVersion& version, const OptionalStatistics& statistics) {
          if (!list) {
            const std::vector<JsonMember> head = {{"store", StoreText(opened)},
                                                  {"fqn", JsonText(fqn)}};
            list.emplace(run.out, head, "versions");
          }
          list->Add(VersionJson(version, statistics));
        });
    if (!found) {
      if (list) list->Abandon(found.error());
      return Fail(std::move(found).error());
    }
    list->Finish();
    return kExitSuccess;
  }
  VersionTable table(run.out);
  auto found = ForEachVersion(
      opened, fqn, [&](const core::KeyVersion& version, const OptionalStatistics& statistics) {
        table.Add(version, statistics);
      });
  table.Finish();  // after an error, the rows before it are useful
  if (!found) return Fail(std::move(found).error());
  return kExitSuccess;
}

}  // namespace cairn::tools
