// Tables with aligned columns, which are cut to the width of a terminal but never in a pipe.

#include "tools/common/table.h"

#include <algorithm>
#include <numeric>

#include "tools/common/text.h"

namespace cairn::tools {
namespace {

constexpr uint32_t kGapColumns = 2;
constexpr uint32_t kMinFlexibleColumns = 16;

}  // namespace

Table::Table(Output* out, std::vector<Column> columns, uint32_t indent)
    : out_(out), columns_(std::move(columns)), indent_(indent), widths_(columns_.size()) {
  for (size_t i = 0; i < columns_.size(); ++i) widths_[i] = DisplayColumns(columns_[i].title);
}

void Table::Add(std::vector<Cell> cells) {
  CAIRN_CHECK(cells.size() == columns_.size());
  for (size_t i = 0; i < cells.size(); ++i) {
    widths_[i] = std::max(widths_[i], DisplayColumns(cells[i].text));
  }
  rows_.push_back(std::move(cells));
  if (rows_.size() >= kBatchRows) Flush();
}

void Table::Finish() { Flush(); }

void Table::FitTerminal(std::vector<uint32_t>& widths) const {
  if (out_->width_columns() == 0) return;
  const uint32_t gaps = kGapColumns * static_cast<uint32_t>(columns_.size() - 1) + indent_;
  uint32_t total = std::accumulate(widths.begin(), widths.end(), gaps);
  for (size_t i = 0; i < columns_.size() && total > out_->width_columns(); ++i) {
    if (!columns_[i].flexible || widths[i] <= kMinFlexibleColumns) continue;
    const uint32_t give = std::min(total - out_->width_columns(), widths[i] - kMinFlexibleColumns);
    widths[i] -= give;
    total -= give;
  }
}

std::string Table::Line(const std::vector<Cell>& cells, const std::vector<uint32_t>& widths) const {
  std::string line(indent_, ' ');
  for (size_t i = 0; i < cells.size(); ++i) {
    const std::string text = columns_[i].flexible && out_->width_columns() != 0
                                 ? CutMiddle(cells[i].text, widths[i])
                                 : cells[i].text;
    const uint32_t used = DisplayColumns(text);
    const std::string padding(widths[i] > used ? widths[i] - used : 0, ' ');
    if (i > 0) line.append(kGapColumns, ' ');
    if (columns_[i].align == Align::kRight) line += padding;
    line += out_->Styled(cells[i].style, text);
    // No spaces at the end of a line: they wrap on a terminal and add noise to a diff.
    if (columns_[i].align == Align::kLeft && i + 1 < cells.size()) line += padding;
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

void Table::Flush() {
  if (rows_.empty()) return;
  std::vector<uint32_t> widths = widths_;
  FitTerminal(widths);
  if (!header_written_) {
    std::vector<Cell> titles;
    for (const Column& column : columns_) titles.emplace_back(column.title, Style::kBold);
    out_->WriteLine(Line(titles, widths));
    header_written_ = true;
  }
  for (const auto& row : rows_) out_->WriteLine(Line(row, widths));
  rows_.clear();
}

}  // namespace cairn::tools
