// The `main` function that all programs share.

#include "tools/common/program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <exception>
#include <new>
#include <string_view>
#include <utility>

#include "tools/common/exit_status.h"
#include "tools/common/terminal.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

Result<int> ParseAndRun(const CommandLine& line, int argc, char** argv) {
  CAIRN_TRY_ASSIGN(const Verb* const verb,
                   ParseCommandLine(line, std::vector<std::string>(argv + 1, argv + argc)));
  if (verb == nullptr) return kExitSuccess;
  Output out;
  CAIRN_TRY_ASSIGN(const int status, verb->run(out));
  if (auto written = out.Finish(); !written) {
    Error error = std::move(written).error();
    error.message = "the command was carried out, but its output is incomplete: " + error.message;
    return Fail(std::move(error));
  }
  return status;
}

/// A file of a store must not get the number of a standard stream that is closed: what the program
/// prints would be written to it. Writes to the file that is opened here instead fail.
void OpenClosedStreams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) (void)::open("/dev/null", O_RDONLY);
  }
}

}  // namespace

int RunProgram(const CommandLine& line, int argc, char** argv) {
  OpenClosedStreams();
  // LC_CTYPE decides only how wide characters are; numbers keep their decimal point.
  std::setlocale(LC_CTYPE, "");
  const auto fail = [&](std::string_view what) {
    std::fflush(stdout);
    WriteStderr(fmt::format("{}: {}\n", line.name, what));
    return static_cast<int>(kExitFailed);
  };
  try {
    const Result<int> status = ParseAndRun(line, argc, argv);
    if (!status) return fail(EscapeText(status.error().ToString()));
    return *status;
  } catch (const std::bad_alloc&) {
    return fail("out of memory");
  } catch (const std::exception& error) {
    return fail(fmt::format("internal error: {}", EscapeText(error.what())));
  }
}

}  // namespace cairn::tools
