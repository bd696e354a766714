#pragma once
/// Tables with aligned columns, which are cut to the width of a terminal but never in a pipe.

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/common/terminal.h"

namespace cairn::tools {

enum class Align : uint8_t { kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kLeft;
  /// The middle of the text is removed if the terminal is too narrow.
  bool flexible = false;
};
inline Column Left(std::string title) { return {std::move(title)}; }
inline Column Right(std::string title) { return {std::move(title), Align::kRight}; }
inline Column Flexible(std::string title) { return {std::move(title), Align::kLeft, true}; }

struct Cell {
  Cell(std::string cell_text,
       Style cell_style = Style::kPlain)  // NOLINT(google-explicit-constructor)
      : text(std::move(cell_text)), style(cell_style) {}
  Cell(const char* cell_text) : text(cell_text) {}  // NOLINT(google-explicit-constructor)
  std::string text;
  Style style = Style::kPlain;
};

/// Buffers rows until their widths are known, but at most kBatchRows of them, so that a table of
/// millions of rows takes bounded memory, and its first lines are printed at once. On a terminal,
/// rows are also printed if the next one is late. Columns may become wider from batch to batch.
class Table {
 public:
  static constexpr size_t kBatchRows = 2'000;
  static constexpr std::chrono::milliseconds kMaxDelay{10};  // for a row on a terminal

  /// `out` must outlive the table. Every row is indented by `indent` spaces.
  Table(Output* out, std::vector<Column> columns, uint32_t indent = 0);
  /// Adds a row. Requires one cell per column; texts must be escaped.
  void Add(std::vector<Cell> cells);
  /// Writes the buffered rows; a table without rows writes nothing.
  void Finish();

 private:
  bool IsLate();
  std::vector<uint32_t> FittingWidths() const;
  void WriteRow(const std::vector<Cell>& cells, const std::vector<uint32_t>& widths) const;

  Output* out_;
  std::vector<Column> columns_;
  uint32_t indent_;
  std::vector<std::vector<Cell>> rows_;                   // buffered
  std::chrono::steady_clock::time_point first_buffered_;  // when the first of these rows was added
  std::vector<uint32_t> widths_;
  bool header_written_ = false;
};

}  // namespace cairn::tools
