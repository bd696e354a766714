// `kv-dump history`: the steps at which a key differs from the step before; and `kv-dump blame`:
// the steps of a line of descent that changed a key, and by how much.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/inspect/compare.h"
#include "core/inspect/descent.h"
#include "core/inspect/stored_statistics.h"
#include "core/inspect/value_difference.h"
#include "tools/common/exit_status.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"
#include "tools/dump/contents_json.h"
#include "tools/dump/opened_store.h"
#include "tools/dump/rows.h"
#include "tools/dump/statistics_text.h"
#include "tools/dump/tensor_values.h"
#include "tools/dump/verbs.h"

namespace cairn::tools {
namespace {

using core::KeyChange;

/// A change of the key, from the step before it.
struct Version {
  core::KeyVersion found;
  std::optional<core::StoredStatistics> statistics;  // of the tensor in the step
  // Only for blame:
  std::optional<double> mean_shift;           // since the last change, if it is known
  std::optional<ValueDifference> difference;  // of all values

  const KeyChange& change() const { return found.change; }
};

std::vector<Column> VersionColumns() {
  return {Right("STEP"), Left("SAVED"), Left("CHANGE"), Right("BYTES"), Right("OF")};
}

std::vector<Cell> VersionCells(const Version& version) {
  const KeyChange& change = version.change();
  return {fmt::to_string(version.found.step.step), LocalTime(version.found.step.created_unix_ns),
          ChangeCell(change), change.is_tensor ? HumanBytes(change.changed_bytes) : "value",
          change.is_tensor ? HumanBytes(change.total_bytes) : ""};
}

Json VersionJson(const Version& version, bool is_blame) {
  const kv::StepInfo& step = version.found.step;
  Json json = {{"step", step.step}, {"created", IsoTime(step.created_unix_ns)}};
  if (is_blame && step.run) json["run"] = HexText(*step.run);
  if (is_blame && version.change().kind == KeyChange::Kind::kChanged) {
    json["since"] = version.found.before.step;
  }
  json.update(ChangeJson(version.change()));
  if (version.statistics) json["statistics"] = StatisticsJson(*version.statistics);
  if (version.mean_shift) json["mean_shift"] = *version.mean_shift;
  if (version.difference) json.update(DifferenceJson(*version.difference));
  return json;
}

/// Calls `visit` with the versions of a key, and with what saves recorded about their values.
template <typename Visit>
Result<void> ForEachVersion(const core::CheckpointStore& store, const std::string& fqn,
                            const Visit& visit, std::span<const kv::StepInfo> line = {}) {
  const auto add = [&](const core::KeyVersion& found) -> Result<void> {
    Version version{.found = found};
    if (found.change.is_tensor && found.change.kind != KeyChange::Kind::kRemoved) {
      CAIRN_TRY_ASSIGN(const core::TensorInfo tensor, store.FindTensor(found.step, fqn));
      CAIRN_TRY_ASSIGN(auto statistics, core::FindStatistics(store.kv(), found.step, {&tensor, 1}));
      version.statistics = std::move(statistics.front());
    }
    return visit(std::move(version));
  };
  return core::FindVersions(store.kv(), fqn, add, line);
}

Result<std::vector<Version>> FindBlamed(const core::CheckpointStore& store, const std::string& fqn,
                                        std::span<const kv::StepInfo> line) {
  std::vector<Version> blamed;
  const auto add = [&](Version version) -> Result<void> {
    if (version.change().kind == KeyChange::Kind::kChanged) {
      const auto& before = blamed.back().statistics;
      if (version.statistics && before) {
        const double shift = version.statistics->mean - before->mean;
        if (std::isfinite(shift)) version.mean_shift = shift;
      }
    }
    blamed.push_back(std::move(version));
    return {};
  };
  CAIRN_TRY(ForEachVersion(store, fqn, add, line));
  return blamed;
}

/// Reads the tensor before and after each change.
Result<void> CompareValues(const core::CheckpointStore& store, std::vector<Version>& blamed) {
  ProgressLine line("comparing", ProgressUnit::kCount);
  for (size_t i = 0; i < blamed.size(); ++i) {
    const KeyChange& change = blamed[i].change();
    if (change.kind != KeyChange::Kind::kChanged || !change.is_tensor) continue;
    const auto progress = [&](uint64_t, uint64_t) { return line.Update(i, blamed.size()); };
    const kv::StepInfo& before = blamed[i].found.before;
    const kv::StepInfo& step = blamed[i].found.step;
    CAIRN_TRY_ASSIGN(const auto compared,
                     core::CompareValues(store.kv(), before, step, {&change.fqn, 1}, progress));
    blamed[i].difference = compared.front();
  }
  return {};
}

}  // namespace

Result<int> DumpHistory(const DumpRun& run) {
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenWithoutStep(run.address, "history"));
  const std::string& fqn = run.second;
  std::optional<Rows> rows;  // begin with the first version: there may not be such a key
  bool has_statistics = false;
  auto found = ForEachVersion(*opened.store, fqn, [&](const Version& version) -> Result<void> {
    // Columns for statistics begin, in a new table, with the first version that has some.
    if (!rows || (!run.json && version.statistics && !has_statistics)) {
      if (rows) CAIRN_TRY(rows->Finish());
      has_statistics = version.statistics.has_value();
      std::vector<Column> columns = VersionColumns();
      columns.push_back(Flexible("DETAIL"));
      if (has_statistics) AppendStatisticsColumns(columns);
      rows.emplace(run, std::move(columns),
                   Json{{"store", StoreText(opened)}, {"fqn", JsonText(fqn)}}, "versions");
    }
    rows->Add(
        [&] {
          std::vector<Cell> cells = VersionCells(version);
          cells.emplace_back(EscapeText(version.change().detail));
          if (has_statistics) AppendStatisticsCells(version.statistics, cells);
          return cells;
        },
        [&] { return VersionJson(version, /*is_blame=*/false); });
    return {};
  });
  if (rows) found = rows->Finish(std::move(found));
  CAIRN_TRY(found);
  return kExitSuccess;
}

Result<int> DumpBlame(const DumpRun& run) {
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenStore(run.address));
  const core::CheckpointStore& store = *opened.store;
  CAIRN_TRY_ASSIGN(const kv::StepInfo step, FindStep(opened));
  CAIRN_TRY_ASSIGN(const std::vector<kv::StepInfo> steps, store.Steps());
  const auto last = std::ranges::find(steps, step.attempt, &kv::StepInfo::attempt);
  if (last == steps.end()) {
    return Fail(Error{.code = ErrorCode::kNotFound,
                      .message = "the step was deleted or replaced while it was being read",
                      .step = step.step});
  }
  const core::LineOfSteps line = core::FindLine(steps, static_cast<size_t>(last - steps.begin()));
  CAIRN_TRY_ASSIGN(std::vector<Version> blamed, FindBlamed(store, run.second, line.steps));
  if (run.values) CAIRN_TRY(CompareValues(store, blamed));
  const bool has_shifts =
      std::ranges::any_of(blamed, [](const Version& one) { return one.mean_shift.has_value(); });
  std::vector<Column> columns = VersionColumns();
  columns.push_back(Right("SHARE"));
  if (has_shifts) columns.push_back(Right("MEAN BY"));
  if (run.values) columns.push_back(Left("VALUES DIFFER IN"));
  columns.push_back(Flexible("DETAIL"));
  Json head = {{"store", StoreText(opened)},
               {"step", step.step},
               {"fqn", JsonText(run.second)},
               {"steps", line.steps.size()},
               {"absent_parents", line.absent}};
  Rows rows(run, std::move(columns), head, "changes");
  for (const Version& one : blamed) {
    rows.Add(
        [&] {
          const KeyChange& change = one.change();
          std::vector<Cell> cells = VersionCells(one);
          cells.emplace_back(change.is_tensor ? Percent(change.changed_bytes, change.total_bytes)
                                              : "");
          if (has_shifts) {
            cells.emplace_back(one.mean_shift ? fmt::format("{:+.4g}", *one.mean_shift) : "");
          }
          if (run.values) {
            cells.emplace_back(one.difference ? DifferenceText(*one.difference) : "");
          }
          cells.emplace_back(EscapeText(change.detail));
          return cells;
        },
        [&] { return VersionJson(one, /*is_blame=*/true); });
  }
  CAIRN_TRY(rows.Finish());
  if (!line.absent.empty()) {
    PrintRemark(run, fmt::format("{} on the way, such as {}, {} not in the store; their changes "
                                 "count as those of the next step.",
                                 Plural(line.absent.size(), "step"), line.absent.back(),
                                 line.absent.size() == 1 ? "is" : "are"));
  }
  return kExitSuccess;
}

}  // namespace cairn::tools
