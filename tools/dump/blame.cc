// `kv-dump blame`: the steps of a line of descent that changed a key, and by how much.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "core/inspect/compare.h"
#include "core/inspect/descent.h"
#include "core/inspect/stored_statistics.h"
#include "kv/read/snapshot.h"
#include "tools/common/exit_status.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"
#include "tools/common/timestamps.h"
#include "tools/dump/contents_json.h"
#include "tools/dump/opened_store.h"
#include "tools/dump/rows.h"
#include "tools/dump/statistics_text.h"
#include "tools/dump/tensor_values.h"
#include "tools/dump/verbs.h"

namespace cairn::tools {
namespace {

using core::KeyChange;

/// A change of the key, from the step before it in the line of descent.
struct Blamed {
  core::KeyVersion version;
  std::optional<core::StoredStatistics> statistics;  // of the tensor in the step
  std::optional<double> mean_shift;                  // since the last change, if it is known
  std::optional<ValueDifference> difference;         // of all values
};

Result<std::vector<Blamed>> FindBlamed(const OpenedStore& opened, const std::string& fqn,
                                       std::span<const kv::StepInfo> line) {
  std::vector<Blamed> blamed;
  CAIRN_TRY(core::FindVersions(
      opened.store->kv(), fqn,
      [&](const core::KeyVersion& version) -> Result<void> {
        Blamed one{.version = version};
        CAIRN_TRY_ASSIGN(one.statistics, FindStatistics(opened, version));
        if (version.change.kind == KeyChange::Kind::kChanged) {
          const auto& before = blamed.back().statistics;
          if (one.statistics && before) {
            const double shift = one.statistics->mean - before->mean;
            if (std::isfinite(shift)) one.mean_shift = shift;
          }
        }
        blamed.push_back(std::move(one));
        return {};
      },
      line));
  return blamed;
}

/// Reads the tensor before and after each change.
Result<void> CompareValues(const core::CheckpointStore& store, std::vector<Blamed>& blamed) {
  ProgressLine line("comparing", ProgressUnit::kCount);
  for (size_t i = 0; i < blamed.size(); ++i) {
    Blamed& one = blamed[i];
    const KeyChange& change = one.version.change;
    if (change.kind != KeyChange::Kind::kChanged || !change.is_tensor) continue;
    const auto progress = [&](uint64_t, uint64_t) { return line.Update(i, blamed.size()); };
    auto tensor = FindComparable(store, one.version.before, one.version.step, change.fqn);
    if (!tensor && tensor.error().code == ErrorCode::kInvalidArgument) continue;
    CAIRN_TRY(tensor);
    CAIRN_TRY_ASSIGN(one.difference, CompareTensors(store, one.version.before, one.version.step,
                                                    *tensor, progress));
  }
  return {};
}

Json BlamedJson(const Blamed& blamed) {
  const kv::StepInfo& step = blamed.version.step;
  Json json = {{"step", step.step}, {"created", IsoTime(step.created_unix_ns)}};
  if (step.run) json["run"] = HexText(*step.run);
  if (blamed.version.change.kind == KeyChange::Kind::kChanged)
    json["since"] = blamed.version.before.step;
  json.update(ChangeJson(blamed.version.change));
  if (blamed.statistics) json["statistics"] = StatisticsJson(*blamed.statistics);
  if (blamed.mean_shift) json["mean_shift"] = *blamed.mean_shift;
  if (blamed.difference) json.update(DifferenceJson(*blamed.difference));
  return json;
}

}  // namespace

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
  CAIRN_TRY_ASSIGN(std::vector<Blamed> blamed, FindBlamed(opened, run.second, line.steps));
  if (run.values) CAIRN_TRY(CompareValues(store, blamed));
  const bool has_shifts =
      std::ranges::any_of(blamed, [](const Blamed& one) { return one.mean_shift.has_value(); });
  std::vector<Column> columns = {Right("STEP"),  Left("SAVED"), Left("CHANGE"),
                                 Right("BYTES"), Right("OF"),   Right("SHARE")};
  if (has_shifts) columns.push_back(Right("MEAN BY"));
  if (run.values) columns.push_back(Left("VALUES DIFFER IN"));
  columns.push_back(Flexible("DETAIL"));
  Json head = {{"store", StoreText(opened)},
               {"step", step.step},
               {"fqn", JsonText(run.second)},
               {"steps", line.steps.size()},
               {"absent_parents", line.absent}};
  Rows rows(run, std::move(columns), head, "changes");
  for (const Blamed& one : blamed) {
    rows.Add(
        [&] {
          const KeyChange& change = one.version.change;
          std::vector<Cell> cells = {
              fmt::to_string(one.version.step.step),
              LocalTime(one.version.step.created_unix_ns),
              ChangeCell(change),
              change.is_tensor ? HumanBytes(change.changed_bytes) : "value",
              change.is_tensor ? HumanBytes(change.total_bytes) : "",
              change.is_tensor ? Percent(change.changed_bytes, change.total_bytes) : ""};
          if (has_shifts) {
            cells.emplace_back(one.mean_shift ? fmt::format("{:+.4g}", *one.mean_shift) : "");
          }
          if (run.values) {
            cells.emplace_back(one.difference ? DifferenceText(*one.difference) : "");
          }
          cells.emplace_back(EscapeText(change.detail));
          return cells;
        },
        [&] { return BlamedJson(one); });
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
