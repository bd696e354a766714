// Standard output, which is a terminal with colors and a width, or a pipe.

#include "tools/common/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "tools/common/text.h"

namespace cairn::tools {
namespace {

/// The capacity of a pipe, which a write fills if the reader has emptied it.
constexpr size_t kPipeBufferBytes = 64 << 10;

bool EnvironmentSet(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

constexpr std::array<std::string_view, 7> kCodes = {  // by style
    "", "\033[1m", "\033[2m", "\033[31m", "\033[32m", "\033[33m", "\033[36m"};

}  // namespace

Output::Output() {
  if (!isatty(STDOUT_FILENO)) {
    std::setvbuf(stdout, nullptr, _IOFBF, kPipeBufferBytes);
    return;
  }
  winsize size{};
  width_columns_ = 80;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) width_columns_ = size.ws_col;
  width_columns_ = std::max(width_columns_, 40u);
  const char* terminal = std::getenv("TERM");
  color_ =
      !EnvironmentSet("NO_COLOR") && terminal != nullptr && std::string_view(terminal) != "dumb";
}

void Output::Write(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void Output::WriteLine(std::string_view text) {
  Write(text);
  Write("\n");
}

std::string Output::Styled(Style style, std::string_view text) const {
  std::string styled;
  AppendStyled(style, text, styled);
  return styled;
}

void Output::AppendStyled(Style style, std::string_view text, std::string& line) const {
  const bool is_plain = !color_ || style == Style::kPlain || text.empty();
  if (!is_plain) line += kCodes[static_cast<size_t>(style)];
  line += text;
  if (!is_plain) line += "\033[0m";
}

void Output::Flush() { (void)std::fflush(stdout); }

Result<void> Output::Finish() {
  const bool failed_before = std::ferror(stdout) != 0;
  if (std::fflush(stdout) != 0 || failed_before) {
    return Fail(SystemError(errno, "writing to standard output"));
  }
  return {};
}

void WriteStderr(std::string_view text) {
  (void)std::fwrite(text.data(), 1, text.size(), stderr);
  (void)std::fflush(stderr);
}

bool StderrIsTerminal() { return isatty(STDERR_FILENO) != 0; }

void Warn(std::string_view program, std::string_view message) {
  std::fflush(stdout);
  WriteStderr(fmt::format("{}: warning: {}\n", program, EscapeText(message)));
}

}  // namespace cairn::tools
