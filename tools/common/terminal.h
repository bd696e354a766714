#pragma once
/// Standard output as the programs see it: a terminal with colours and a width, or a pipe.

#include <cstdint>
#include <string>
#include <string_view>

#include "kv/error.h"

namespace cairn::tools::internal {

enum class Style : uint8_t { kPlain, kBold, kDim, kRed, kGreen, kYellow, kCyan };

/// Buffered standard output. Threads: one.
class Output {
 public:
  /// Colour only where standard output is a terminal that has it and NO_COLOR is unset or empty.
  Output();

  void Write(std::string_view text);
  void WriteLine(std::string_view text);
  /// `text` in a style, or as it is where there is no colour.
  std::string Styled(Style style, std::string_view text) const;

  bool colour() const { return colour_; }
  /// Columns of the terminal; 0 in a pipe, where nothing is ever cut.
  uint32_t width_columns() const { return width_columns_; }

  /// Flushes. kUnavailable: some of the output could not be written.
  Result<void> Finish();

 private:
  bool colour_ = false;
  uint32_t width_columns_ = 0;
};

/// True if progress lines can be drawn: standard error is a terminal.
bool StderrIsTerminal();

/// "kv-dump: warning: ..." on standard error, on one line.
void Warn(std::string_view program, std::string_view message);

}  // namespace cairn::tools::internal
