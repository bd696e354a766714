// `kv-dump keys`: one row per key.

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "core/step/contents.h"
#include "tools/common/exit_status.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"
#include "tools/dump/contents_json.h"
#include "tools/dump/opened_store.h"
#include "tools/dump/rows.h"
#include "tools/dump/statistics_text.h"
#include "tools/dump/verbs.h"

namespace cairn::tools {
namespace {

Json TensorRowJson(const core::TensorInfo& tensor) {
  Json json = TensorJson(tensor);
  if (tensor.alias_of) {
    json["alias_offset_bytes"] = tensor.alias_offset_bytes;
    json["alias_strides"] = tensor.alias_strides;
  }
  if (tensor.hidden) json["hidden"] = true;
  return json;
}

std::string TensorNote(const core::TensorInfo& tensor) {
  if (tensor.alias_of) return fmt::format("shares {}", EscapeText(*tensor.alias_of));
  if (tensor.hidden) return "storage that other tensors share";
  return "";
}

std::vector<Column> TensorColumns() {
  return {Flexible("FQN"), Left("DTYPE"), Left("SHAPE"), Right("BYTES"), Right("CHUNKS")};
}

std::vector<Cell> TensorCells(const core::TensorInfo& tensor) {
  const Style style = tensor.hidden ? Style::kDim : Style::kPlain;
  return {Cell(EscapeText(tensor.fqn), style), std::string(schema::DTypeName(tensor.dtype)),
          ShapeText(tensor.shape), HumanBytes(tensor.nbytes),
          tensor.alias_of ? "-" : GroupedCount(tensor.chunk_count)};
}

Json Head(const OpenedStore& opened, const kv::StepInfo& step) {
  return {{"store", StoreText(opened)}, {"step", step.step}};
}

Result<int> PrintStatistics(const DumpRun& run, const OpenedStore& opened, const kv::StepInfo& step,
                            const core::KeyPatterns& patterns) {
  std::optional<StatisticsFilter> filter;
  if (!run.where.empty()) {
    CAIRN_TRY_ASSIGN(filter, StatisticsFilter::Parse(run.where));
  }
  std::vector<Column> columns = TensorColumns();
  AppendStatisticsColumns(columns);
  Rows rows(run, std::move(columns), Head(opened, step), "keys");
  uint64_t unknown = 0;  // tensors that the filter could not examine
  uint64_t tensors = 0;
  ProgressLine progress("reading statistics of tensors", ProgressUnit::kCount);
  auto listed = ForEachStatistics(
      opened, step, patterns,
      [&](const core::TensorInfo& tensor, const std::optional<core::StoredStatistics>& found) {
        unknown += LacksStatistics(tensor, found);
        progress.Update(++tensors, step.tensor_count);
        if (filter && !filter->Matches(tensor, found)) return;
        progress.Clear();
        rows.Add(
            [&] {
              std::vector<Cell> cells = TensorCells(tensor);
              AppendStatisticsCells(found, cells);
              return cells;
            },
            [&] {
              Json json = TensorRowJson(tensor);
              if (found) json["statistics"] = StatisticsJson(*found);
              return json;
            });
      });
  progress.Clear();
  CAIRN_TRY(rows.Finish(std::move(listed), {{"tensors_without_statistics", unknown}}));
  if (rows.is_empty()) PrintRemark(run, fmt::format("No tensor of step {} matches.", step.step));
  if (unknown > 0) {
    PrintRemark(run, fmt::format("No statistics were recorded of {}; to compute them: kv-admin "
                                 "statistics {}",
                                 Plural(unknown, "tensor"),
                                 ShellWord(fmt::format("{}@{}", opened.address.store, step.step))));
  }
  return kExitSuccess;
}

Result<int> PrintKeys(const DumpRun& run, const OpenedStore& opened, const kv::StepInfo& step,
                      const core::KeyPatterns& patterns) {
  std::vector<Column> columns = TensorColumns();
  columns.push_back(Flexible("VALUE OR NOTE"));
  Rows rows(run, std::move(columns), Head(opened, step), "keys");
  CAIRN_TRY(rows.Finish(opened.store->ForEachKey(
      step, patterns,
      [&](const core::TensorInfo& tensor) -> Result<void> {
        rows.Add(
            [&] {
              std::vector<Cell> cells = TensorCells(tensor);
              cells.emplace_back(TensorNote(tensor), Style::kDim);
              return cells;
            },
            [&] { return TensorRowJson(tensor); });
        return {};
      },
      [&](const core::ValueInfo& value) -> Result<void> {
        rows.Add(
            [&]() -> std::vector<Cell> {
              return {EscapeText(value.fqn),
                      Cell(core::TypeName(value.value), Style::kCyan),
                      "",
                      "",
                      "",
                      EscapeText(core::FormatValue(value.value))};
            },
            [&] { return ValueJson(value); });
        return {};
      })));
  if (rows.is_empty()) PrintRemark(run, fmt::format("No key of step {} matches.", step.step));
  return kExitSuccess;
}

}  // namespace

Result<int> DumpKeys(const DumpRun& run) {
  CAIRN_TRY_ASSIGN(const core::KeyPatterns patterns, core::KeyPatterns::Parse(run.patterns));
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenStore(run.address));
  CAIRN_TRY_ASSIGN(const kv::StepInfo step, FindStep(opened));
  const bool has_statistics = run.statistics || !run.where.empty();
  return (has_statistics ? PrintStatistics : PrintKeys)(run, opened, step, patterns);
}

}  // namespace cairn::tools
