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

void RemarkNoMatch(const DumpRun& run, const core::Contents& contents) {
  PrintRemark(run, fmt::format("No key of step {} matches.", contents.step.step));
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

/// Calls `on_tensor` or `on_value` for each key, in key order.
template <typename OnTensor, typename OnValue>
void ForEachKey(const core::Contents& contents, OnTensor on_tensor, OnValue on_value) {
  auto value = contents.values.begin();
  for (const core::TensorInfo& tensor : contents.tensors) {
    for (; value != contents.values.end() && value->fqn < tensor.fqn; ++value) on_value(*value);
    on_tensor(tensor);
  }
  for (; value != contents.values.end(); ++value) on_value(*value);
}

}  // namespace

Result<int> DumpKeys(const DumpRun& run, const std::string& address,
                     const std::vector<std::string>& patterns, const KeysOptions& options) {
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenStore(address));
  CAIRN_TRY_ASSIGN(const core::Contents contents, ListKeys(opened, patterns));
  if (options.statistics || !options.where.empty()) {
    return DumpStatistics(run, opened, contents, options);
  }
  if (run.json) {
    JsonList list(run.out, {{"store", StoreText(opened)}, {"step", contents.step.step}}, "keys");
    ForEachKey(
        contents, [&](const core::TensorInfo& tensor) { list.Add(TensorRowJson(tensor)); },
        [&](const core::ValueInfo& value) { list.Add(ValueInfoJson(value)); });
    list.Finish();
    return kExitSuccess;
  }
  if (contents.tensors.empty() && contents.values.empty()) RemarkNoMatch(run, contents);
  Table table(run.out, {{"FQN", Align::kLeft, true},
                        {"DTYPE"},
                        {"SHAPE"},
                        {"BYTES", Align::kRight},
                        {"CHUNKS", Align::kRight},
                        {"VALUE OR NOTE", Align::kLeft, true}});
  ForEachKey(
      contents,
      [&](const core::TensorInfo& tensor) {
        std::vector<Cell> cells = TensorCells(tensor);
        cells.emplace_back(TensorNote(tensor), Style::kDim);
        table.Add(std::move(cells));
      },
      [&](const core::ValueInfo& value) {
        table.Add({EscapeText(value.fqn), Cell(ValueKindName(value.value), Style::kCyan), "", "",
                   "", EscapeText(core::FormatValue(value.value))});
      });
  table.Finish();
  return kExitSuccess;
}

}  // namespace cairn::tools
