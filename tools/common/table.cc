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
  if (rows_.size() == kBatchRows || IsLate()) Finish();
}

/// Returns whether the buffered rows have waited for too long. In a pipe they have not, so that the
/// same rows are always printed with the same widths.
bool Table::IsLate() {
  if (out_->width_columns() == 0) return false;
  const auto now = std::chrono::steady_clock::now();
  if (rows_.size() == 1) first_buffered_ = now;
  return now - first_buffered_ >= kMaxDelay;
}

std::vector<uint32_t> Table::FittingWidths() const {
  std::vector<uint32_t> widths = widths_;
  if (out_->width_columns() == 0) return widths;
  const uint32_t gaps = kGapColumns * static_cast<uint32_t>(columns_.size() - 1) + indent_;
  uint32_t total = std::accumulate(widths.begin(), widths.end(), gaps);
  for (size_t i = 0; i < columns_.size() && total > out_->width_columns(); ++i) {
    if (!columns_[i].flexible || widths[i] <= kMinFlexibleColumns) continue;
    const uint32_t give = std::min(total - out_->width_columns(), widths[i] - kMinFlexibleColumns);
    widths[i] -= give;
    total -= give;
  }
  return widths;
}

void Table::WriteRow(const std::vector<Cell>& cells, const std::vector<uint32_t>& widths) const {
  std::string line(indent_, ' ');
  for (size_t i = 0; i < cells.size(); ++i) {
    const bool is_cut = columns_[i].flexible && out_->width_columns() != 0;
    const std::string text = is_cut ? CutMiddle(cells[i].text, widths[i]) : cells[i].text;
    const uint32_t width = DisplayColumns(text);
    const uint32_t padding = widths[i] > width ? widths[i] - width : 0;
    if (i > 0) line.append(kGapColumns, ' ');
    if (columns_[i].align == Align::kRight) line.append(padding, ' ');
    out_->AppendStyled(cells[i].style, text, line);
    if (columns_[i].align == Align::kLeft) line.append(padding, ' ');
  }
  // No spaces at the end of a line: they wrap on a terminal and add noise to a diff.
  line.erase(line.find_last_not_of(' ') + 1);
  out_->WriteLine(line);
}

void Table::Finish() {
  if (rows_.empty()) return;
  const std::vector<uint32_t> widths = FittingWidths();
  if (!header_written_) {
    std::vector<Cell> titles;
    for (const Column& column : columns_) titles.emplace_back(column.title, Style::kBold);
    WriteRow(titles, widths);
  }
  header_written_ = true;
  for (const std::vector<Cell>& cells : rows_) WriteRow(cells, widths);
  rows_.clear();
}

}  // namespace cairn::tools
