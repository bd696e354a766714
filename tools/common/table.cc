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
  cells_.reserve(kBatchRows * columns_.size());  // the kernel supplies only the pages that are used
}

void Table::Add(const std::vector<Cell>& cells) {
  CAIRN_CHECK(cells.size() == columns_.size());
  for (size_t i = 0; i < cells.size(); ++i) {
    const uint32_t width = DisplayColumns(cells[i].text);
    widths_[i] = std::max(widths_[i], width);
    text_ += cells[i].text;
    cells_.push_back({.end_bytes = text_.size(), .width = width, .style = cells[i].style});
  }
  if (cells_.size() == kBatchRows * columns_.size() || IsLate()) Finish();
}

/// Returns whether the buffered rows have waited for too long. In a pipe they have not, so that the
/// same rows are always printed with the same widths.
bool Table::IsLate() {
  if (out_->width_columns() == 0) return false;
  const auto now = std::chrono::steady_clock::now();
  if (cells_.size() == columns_.size()) first_buffered_ = now;
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

void Table::AppendCell(size_t column, std::string_view text, uint32_t text_width, Style style,
                       uint32_t width, std::string& line) const {
  std::string cut;
  if (columns_[column].flexible && out_->width_columns() != 0 && text_width > width) {
    cut = CutMiddle(text, width);
    text = cut;
    text_width = DisplayColumns(text);
  }
  const uint32_t padding = width > text_width ? width - text_width : 0;
  line.append(column == 0 ? indent_ : kGapColumns, ' ');
  if (columns_[column].align == Align::kRight) line.append(padding, ' ');
  out_->AppendStyled(style, text, line);
  if (columns_[column].align == Align::kLeft) line.append(padding, ' ');
}

void Table::WriteLine(std::string& line) const {
  // No spaces at the end of a line: they wrap on a terminal and add noise to a diff.
  line.erase(line.find_last_not_of(' ') + 1);
  line += '\n';
  out_->Write(line);
  line.clear();
}

void Table::Finish() {
  if (cells_.empty()) return;
  const std::vector<uint32_t> widths = FittingWidths();
  std::string line;
  if (!header_written_) {
    for (size_t i = 0; i < columns_.size(); ++i) {
      const std::string& title = columns_[i].title;
      AppendCell(i, title, DisplayColumns(title), Style::kBold, widths[i], line);
    }
    WriteLine(line);
  }
  header_written_ = true;
  size_t begin_bytes = 0;
  size_t column = 0;
  for (const auto& [end_bytes, width, style] : cells_) {
    const auto text = std::string_view(text_).substr(begin_bytes, end_bytes - begin_bytes);
    AppendCell(column, text, width, style, widths[column], line);
    begin_bytes = end_bytes;
    if (++column < columns_.size()) continue;
    column = 0;
    WriteLine(line);
  }
  text_.clear();
  cells_.clear();
}

}  // namespace cairn::tools
