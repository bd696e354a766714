#pragma once
/// Tables with aligned columns that stay readable on a terminal and whole in a pipe.

#include <cstdint>
#include <string>
#include <vector>

#include "tools/common/terminal.h"

namespace cairn::tools::internal {

enum class Align : uint8_t { kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kLeft;
  /// Gives way, losing the middle of its text, when the terminal is too narrow.
  bool flexible = false;
};

struct Cell {
  Cell(std::string cell_text,
       Style cell_style = Style::kPlain)  // NOLINT(google-explicit-constructor)
      : text(std::move(cell_text)), style(cell_style) {}
  Cell(const char* cell_text) : text(cell_text) {}  // NOLINT(google-explicit-constructor)
  std::string text;
  Style style = Style::kPlain;
};

/// Rows are held back until their widths are known, at most kBatchRows of them, so that a table of
/// millions of rows takes bounded memory (its columns may widen once from batch to batch).
class Table {
 public:
  static constexpr size_t kBatchRows = 20'000;

  /// `out` must outlive the table. `indent` spaces stand before every row.
  Table(Output* out, std::vector<Column> columns, uint32_t indent = 0);
  /// Requires one cell a column; texts must be escaped.
  void Add(std::vector<Cell> cells);
  /// Writes what is held back; a table without rows writes nothing.
  void Finish();

 private:
  void Flush();
  void FitTerminal(std::vector<uint32_t>& widths) const;
  std::string Line(const std::vector<Cell>& cells, const std::vector<uint32_t>& widths) const;

  Output* out_;
  std::vector<Column> columns_;
  uint32_t indent_;
  std::vector<std::vector<Cell>> rows_;
  std::vector<uint32_t> widths_;
  bool header_written_ = false;
};

}  // namespace cairn::tools::internal
