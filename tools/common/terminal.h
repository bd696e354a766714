#pragma once
/// Standard output, which is a terminal with colors and a width, or a pipe.

#include <cstdint>
#include <string>
#include <string_view>

#include "kv/base/error.h"

namespace cairn::tools {

enum class Style : uint8_t { kPlain, kBold, kDim, kRed, kGreen, kYellow, kCyan };

/// Buffered standard output. Threads: one.
class Output {
 public:
  /// Uses color only if standard output is a terminal that supports it and NO_COLOR is unset or
  /// empty.
  Output();

  void Write(std::string_view text);
  void WriteLine(std::string_view text);
  /// Returns `text` in a style, or unchanged if there is no color.
  std::string Styled(Style style, std::string_view text) const;
  /// Appends the same to `line`.
  void AppendStyled(Style style, std::string_view text, std::string& line) const;

  /// Columns of the terminal; 0 in a pipe, where nothing is cut.
  uint32_t width_columns() const { return width_columns_; }

  /// Shows what was written so far. Errors remain for Finish.
  void Flush();
  /// Flushes the buffer. kUnavailable, kResourceExhausted: some of the output could not be written.
  Result<void> Finish();

 private:
  bool color_ = false;
  uint32_t width_columns_ = 0;
};

/// Writes to standard error. Ignores errors: nobody is left who could be told.
void WriteStderr(std::string_view text);

/// Returns whether standard error is a terminal, on which progress lines can be drawn.
bool StderrIsTerminal();

/// Prints "kv-dump: warning: ..." on standard error, on one line.
void Warn(std::string_view program, std::string_view message);

}  // namespace cairn::tools
