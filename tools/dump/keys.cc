// `kv-dump keys`: one row per key.

#include "tools/dump/keys.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "core/step/contents.h"
#include "tools/common/exit_status.h"
#include "tools/common/quantities.h"
#include "tools/common/table.h"
#include "tools/common/text.h"
#include "tools/dump/contents_json.h"
#include "tools/dump/opened_store.h"
#include "tools/dump/statistics_text.h"

namespace cairn::tools {
namespace {

void RemarkNoMatch(const DumpRun& run, const kv::StepInfo& step) {
  PrintRemark(run, fmt::format("No key of step {} matches.", step.step));
}

Json TensorRowJson(const core::TensorInfo& tensor) {
  Json json = TensorJson(tensor);
  if (tensor.alias_of) {
    json.Set("alias_offset_bytes", tensor.alias_offset_bytes);
    json.Set("alias_strides", tensor.alias_strides);
  }
  if (tensor.hidden) json.Set("hidden", true);
  return json;
}

Json ValueInfoJson(const core::ValueInfo& value) {
  return {{"fqn", JsonText(value.fqn)},
          {"kind", "value"},
          {"type", ValueKindName(value.value)},
          {"value", ValueJson(value.value)}};
}

std::string TensorNote(const core::TensorInfo& tensor) {
  if (tensor.alias_of) return fmt::format("shares {}", EscapeText(*tensor.alias_of));
  if (tensor.hidden) return "storage that other tensors share";
  return "";
}

std::vector<Cell> TensorCells(const core::TensorInfo& tensor) {
  const Style style = tensor.hidden ? Style::kDim : Style::kPlain;
  return {Cell(EscapeText(tensor.fqn), style), std::string(schema::DTypeName(tensor.dtype)),
          ShapeText(tensor.shape), HumanBytes(tensor.nbytes),
          tensor.alias_of ? "-" : GroupedCount(tensor.chunk_count)};
}

/// The tensors of a step with the statistics that their save recorded.
struct TensorRows {
  std::vector<core::TensorInfo> tensors;
  std::vector<std::optional<core::StoredStatistics>> statistics;
  uint64_t unknown = 0;  // tensors that the filter could not examine
};

Result<TensorRows> FindRows(const OpenedStore& opened, const core::Contents& contents,
                            const std::optional<StatisticsFilter>& filter) {
  CAIRN_TRY_ASSIGN(auto statistics, opened.store->FindStatistics(contents.step, contents.tensors));
  TensorRows rows;
  for (size_t i = 0; i < contents.tensors.size(); ++i) {
    const core::TensorInfo& tensor = contents.tensors[i];
    rows.unknown += !statistics[i] && !tensor.alias_of && tensor.nbytes > 0 ? 1 : 0;
    if (filter && !filter->Matches(tensor, statistics[i])) continue;
    rows.tensors.push_back(tensor);
    rows.statistics.push_back(statistics[i]);
  }
  return rows;
}

/// Prints tensors with their statistics.
Result<int> DumpStatistics(const DumpRun& run, const OpenedStore& opened,
                           const core::Contents& contents, const KeysOptions& options) {
  std::optional<StatisticsFilter> filter;
  if (!options.where.empty()) {
    CAIRN_TRY_ASSIGN(filter, StatisticsFilter::Parse(options.where));
  }
  CAIRN_TRY_ASSIGN(const TensorRows rows, FindRows(opened, contents, filter));
  if (run.json) {
    JsonList list(run.out,
                  {{"store", StoreText(opened)},
                   {"step", contents.step.step},
                   {"tensors_without_statistics", rows.unknown}},
                  "keys");
    for (size_t i = 0; i < rows.tensors.size(); ++i) {
      Json row = TensorRowJson(rows.tensors[i]);
      if (rows.statistics[i]) row.Set("statistics", StatisticsJson(*rows.statistics[i]));
      list.Add(std::move(row));
    }
    list.Finish();
    return kExitSuccess;
  }
  std::vector<Column> columns = {{"FQN", Align::kLeft, true},
                                 {"DTYPE"},
                                 {"SHAPE"},
                                 {"BYTES", Align::kRight},
                                 {"CHUNKS", Align::kRight}};
  AppendStatisticsColumns(columns);
  Table table(run.out, std::move(columns));
  for (size_t i = 0; i < rows.tensors.size(); ++i) {
    std::vector<Cell> cells = TensorCells(rows.tensors[i]);
    AppendStatisticsCells(rows.statistics[i], cells);
    table.Add(std::move(cells));
  }
  table.Finish();
  if (rows.tensors.empty()) {
    PrintRemark(run, fmt::format("No tensor of step {} matches.", contents.step.step));
  }
  if (rows.unknown > 0) {
    PrintRemark(run,
                fmt::format("No statistics were recorded of {}.", Plural(rows.unknown, "tensor")));
  }
  return kExitSuccess;
}

/// Calls a visitor for each selected key of a step, in key order. Without patterns, the first key
/// is known before the last one is read.
Result<void> ForEachKey(const OpenedStore& opened, const kv::StepInfo& step,
                        const std::vector<std::string>& patterns,
                        const core::TensorVisitor& on_tensor, const core::ValueVisitor& on_value) {
  if (patterns.empty()) return opened.store->ForEachKey(step, on_tensor, on_value);
  CAIRN_TRY_ASSIGN(const core::Contents contents, ListKeys(opened, patterns));
  auto value = contents.values.begin();
  for (const core::TensorInfo& tensor : contents.tensors) {
    for (; value != contents.values.end() && value->fqn < tensor.fqn; ++value) {
      CAIRN_TRY(on_value(*value));
    }
    CAIRN_TRY(on_tensor(tensor));
  }
  for (; value != contents.values.end(); ++value) CAIRN_TRY(on_value(*value));
  return {};
}

Result<int> PrintKeysJson(const DumpRun& run, const OpenedStore& opened, const kv::StepInfo& step,
                          const std::vector<std::string>& patterns) {
  JsonList list(run.out, {{"store", StoreText(opened)}, {"step", step.step}}, "keys");
  auto listed = ForEachKey(
      opened, step, patterns,
      [&](const core::TensorInfo& tensor) -> Result<void> {
        list.Add(TensorRowJson(tensor));
        return {};
      },
      [&](const core::ValueInfo& value) -> Result<void> {
        list.Add(ValueInfoJson(value));
        return {};
      });
  if (!listed) {
    list.Abandon(listed.error());
    return Fail(std::move(listed).error());
  }
  list.Finish();
  return kExitSuccess;
}

Result<int> PrintKeys(const DumpRun& run, const OpenedStore& opened, const kv::StepInfo& step,
                      const std::vector<std::string>& patterns) {
  Table table(run.out, {{"FQN", Align::kLeft, true},
                        {"DTYPE"},
                        {"SHAPE"},
                        {"BYTES", Align::kRight},
                        {"CHUNKS", Align::kRight},
                        {"VALUE OR NOTE", Align::kLeft, true}});
  bool is_empty = true;
  auto listed = ForEachKey(
      opened, step, patterns,
      [&](const core::TensorInfo& tensor) -> Result<void> {
        std::vector<Cell> cells = TensorCells(tensor);
        cells.emplace_back(TensorNote(tensor), Style::kDim);
        table.Add(std::move(cells));
        is_empty = false;
        return {};
      },
      [&](const core::ValueInfo& value) -> Result<void> {
        table.Add({EscapeText(value.fqn), Cell(ValueKindName(value.value), Style::kCyan), "", "",
                   "", EscapeText(core::FormatValue(value.value))});
        is_empty = false;
        return {};
      });
  table.Finish();  // after an error, the rows before the damage are useful
  if (!listed) return Fail(std::move(listed).error());
  if (is_empty) RemarkNoMatch(run, step);
  return kExitSuccess;
}

}  // namespace

Result<int> DumpKeys(const DumpRun& run, const std::string& address,
                     const std::vector<std::string>& patterns, const KeysOptions& options) {
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenStore(address));
  if (options.statistics || !options.where.empty()) {
    CAIRN_TRY_ASSIGN(const core::Contents contents, ListKeys(opened, patterns));
    return DumpStatistics(run, opened, contents, options);
  }
  CAIRN_TRY_ASSIGN(const kv::StepInfo step, FindStep(opened));
  return run.json ? PrintKeysJson(run, opened, step, patterns)
                  : PrintKeys(run, opened, step, patterns);
}

}  // namespace cairn::tools
