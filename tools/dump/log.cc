// `kv-dump log`: the tree of steps.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kv/base/annotations.h"
#include "kv/base/step_info.h"
#include "kv/read/snapshot.h"
#include "tools/common/exit_status.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"
#include "tools/common/timestamps.h"
#include "tools/dump/contents_json.h"
#include "tools/dump/opened_store.h"
#include "tools/dump/rows.h"
#include "tools/dump/step_graph.h"
#include "tools/dump/verbs.h"

namespace cairn::tools {
namespace {

/// What the rows have in addition to the graph.
struct LogColumns {
  bool has_runs = false;
  bool has_tags = false;
  bool has_notes = false;

  std::vector<Column> Titles() const {
    std::vector<Column> columns = {Left("STEP"), Left("SAVED"), Right("AGE"), Right("NEW")};
    if (has_runs) columns.push_back(Left("RUN"));
    if (has_tags) columns.push_back(Left("TAGS"));
    if (has_notes) columns.push_back(Flexible("METRICS AND NOTE"));
    return columns;
  }

  /// The cells of a step; empty ones if `step` is null.
  std::vector<Cell> Cells(Cell first, const kv::StepInfo* step, const kv::Tags& tags,
                          int64_t now_unix_ns) const {
    std::vector<Cell> cells = {std::move(first)};
    if (step == nullptr) {
      cells.resize(Titles().size(), "");
      return cells;
    }
    cells.emplace_back(LocalTime(step->created_unix_ns));
    cells.emplace_back(Age(step->created_unix_ns, now_unix_ns));
    cells.emplace_back(HumanBytes(step->written_bytes));
    if (has_runs) cells.emplace_back(step->run ? HexText(*step->run).substr(0, 8) : "-");
    if (has_tags) {
      cells.emplace_back(EscapeText(fmt::to_string(fmt::join(TagsOf(*step, tags), ", "))),
                         Style::kCyan);
    }
    if (has_notes) cells.emplace_back(AnnotationsText(*step));
    return cells;
  }
};

Cell GraphCell(const GraphLine& line) {
  if (line.absent) {
    return {fmt::format("{}{} (not in the store)", line.text, *line.absent), Style::kDim};
  }
  return line.text + (line.step != nullptr ? fmt::to_string(line.step->step) : "");
}

}  // namespace

Result<int> DumpLog(const DumpRun& run) {
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenWithoutStep(run.address, "log"));
  CAIRN_TRY_ASSIGN(const auto snapshot, opened.store->kv().Latest());
  CAIRN_TRY_ASSIGN(const std::vector<kv::StepInfo> steps, snapshot->Steps());
  const LogColumns columns{
      .has_runs = std::ranges::adjacent_find(steps, std::ranges::not_equal_to(),
                                             &kv::StepInfo::run) != steps.end(),
      .has_tags = !snapshot->tags().empty(),
      .has_notes = std::ranges::any_of(steps, [](const kv::StepInfo& step) {
        return !step.metrics.empty() || !step.note.empty();
      })};
  std::map<std::string, std::vector<uint64_t>> children;  // by attempt
  for (const kv::StepInfo& step : steps) {
    if (step.parent) children[step.parent->attempt].push_back(step.step);
  }
  const auto is_present = [&](const kv::ParentStep& parent) {
    return std::ranges::find(steps, parent.attempt, &kv::StepInfo::attempt) != steps.end();
  };
  Rows rows(run, columns.Titles(), {{"store", StoreText(opened)}}, "steps");
  const int64_t now = NowUnixNs();
  for (const GraphLine& line : DrawSteps(steps)) {
    const auto cells = [&] {
      return columns.Cells(GraphCell(line), line.step, snapshot->tags(), now);
    };
    if (line.step == nullptr) {
      rows.AddToTable(cells());
      continue;
    }
    rows.Add(cells, [&] {
      Json json = StepJson(*line.step);
      if (line.step->parent) json["parent"]["present"] = is_present(*line.step->parent);
      json["children"] = children[line.step->attempt];
      const std::vector<std::string> tags = TagsOf(*line.step, snapshot->tags());
      if (!tags.empty()) json["tags"] = tags;
      return json;
    });
  }
  CAIRN_TRY(rows.Finish());
  if (rows.is_empty()) PrintRemark(run, "No steps yet.");
  return kExitSuccess;
}

}  // namespace cairn::tools
