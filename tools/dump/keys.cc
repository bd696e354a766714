// `kv-dump keys`: one row per key.

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "core/step/contents.h"
#include "tools/common/exit_status.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/table.h"
#include "tools/common/text.h"
#include "tools/dump/contents_json.h"
#include "tools/dump/opened_store.h"
#include "tools/dump/statistics_text.h"
#include "tools/dump/verbs.h"

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

/// Prints tensors with their statistics as a table or as JSON.
class StatisticsRows {
 public:
  StatisticsRows(const DumpRun& run, const OpenedStore& opened, const kv::StepInfo& step)
      : table_(run.out, Columns()) {
    if (!run.json) return;
    list_.emplace(run.out,
                  std::vector<JsonMember>{{"store", StoreText(opened)}, {"step", step.step}},
                  "keys");
  }

  void Add(const core::TensorInfo& tensor,
           const std::optional<core::StoredStatistics>& statistics) {
    is_empty_ = false;
    if (list_) {
      Json row = TensorRowJson(tensor);
      if (statistics) row.Set("statistics", StatisticsJson(*statistics));
      list_->Add(row);
      return;
    }
    std::vector<Cell> cells = TensorCells(tensor);
    AppendStatisticsCells(statistics, cells);
    table_.Add(cells);
  }

  /// `unknown`: tensors that the filter could not examine.
  void Finish(uint64_t unknown) {
    if (list_) return list_->Finish({{"tensors_without_statistics", unknown}});
    table_.Finish();
  }
  void Abandon(const Error& error) {
    if (list_) return list_->Abandon(error);
    table_.Finish();
  }
  bool is_empty() const { return is_empty_; }

 private:
  static std::vector<Column> Columns() {
    std::vector<Column> columns = {{"FQN", Align::kLeft, true},
                                   {"DTYPE"},
                                   {"SHAPE"},
                                   {"BYTES", Align::kRight},
                                   {"CHUNKS", Align::kRight}};
    AppendStatisticsColumns(columns);
    return columns;
  }

  Table table_;
  std::optional<JsonList> list_;
  bool is_empty_ = true;
};

Result<int> PrintStatistics(const DumpRun& run, const OpenedStore& opened, const kv::StepInfo& step,
                            const core::KeyPatterns& patterns, const std::string& where) {
  std::optional<StatisticsFilter> filter;
  if (!where.empty()) {
    CAIRN_TRY_ASSIGN(filter, StatisticsFilter::Parse(where));
  }
  uint64_t unknown = 0;
  uint64_t tensors = 0;
  ProgressLine progress("reading statistics of tensors", ProgressUnit::kCount);
  StatisticsRows rows(run, opened, step);
  auto listed = ForEachStatistics(
      opened, step, patterns,
      [&](const core::TensorInfo& tensor, const std::optional<core::StoredStatistics>& found) {
        unknown += !found && !tensor.alias_of && tensor.nbytes > 0 ? 1 : 0;
        progress.Update(++tensors, step.tensor_count);
        if (filter && !filter->Matches(tensor, found)) return;
        progress.Clear();
        rows.Add(tensor, found);
      });
  progress.Clear();
  if (!listed) {
    rows.Abandon(listed.error());
    return Fail(std::move(listed).error());
  }
  rows.Finish(unknown);
  if (run.json) return kExitSuccess;
  if (rows.is_empty()) PrintRemark(run, fmt::format("No tensor of step {} matches.", step.step));
  if (unknown > 0) {
    PrintRemark(run, fmt::format("No statistics were recorded of {}.", Plural(unknown, "tensor")));
  }
  return kExitSuccess;
}

Result<int> PrintKeysJson(const DumpRun& run, const OpenedStore& opened, const kv::StepInfo& step,
                          const core::KeyPatterns& patterns) {
  JsonList list(run.out, {{"store", StoreText(opened)}, {"step", step.step}}, "keys");
  auto listed = opened.store->ForEachKey(
      step, patterns,
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
                      const core::KeyPatterns& patterns) {
  Table table(run.out, {{"FQN", Align::kLeft, true},
                        {"DTYPE"},
                        {"SHAPE"},
                        {"BYTES", Align::kRight},
                        {"CHUNKS", Align::kRight},
                        {"VALUE OR NOTE", Align::kLeft, true}});
  bool is_empty = true;
  auto listed = opened.store->ForEachKey(
      step, patterns,
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
  CAIRN_TRY_ASSIGN(const core::KeyPatterns parsed, core::KeyPatterns::Parse(patterns));
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenStore(address));
  CAIRN_TRY_ASSIGN(const kv::StepInfo step, FindStep(opened));
  if (options.statistics || !options.where.empty()) {
    return PrintStatistics(run, opened, step, parsed, options.where);
  }
  return run.json ? PrintKeysJson(run, opened, step, parsed) : PrintKeys(run, opened, step, parsed);
}

}  // namespace cairn::tools
