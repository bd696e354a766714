// The `main` function that all programs share.

#include "tools/common/program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <clocale>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string_view>
#include <utility>

#include "tools/common/completion.h"
#include "tools/common/exit_status.h"
#include "tools/common/next_step.h"
#include "tools/common/terminal.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

constexpr std::string_view kComplete = "--complete";

/// Sets `verb`, which points into `line`, as soon as it is known.
Result<int> ParseAndRun(const CommandLine& line, int argc, char** argv, const Verb*& verb) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words.front() == kComplete) {
    const std::string lines = CandidateLines(Complete(line, {words.begin() + 1, words.end()}));
    Output out;
    out.Write(lines);
    CAIRN_TRY(out.Finish());
    return kExitSuccess;
  }
  CAIRN_TRY_ASSIGN(verb, ParseCommandLine(line, words));
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

/// Adds the option that prints the completion scripts.
CommandLine WithCompletion(CommandLine line) {
  line.texts.push_back(
      {.name = "--completion",
       .help = "Print the script that completes command lines in bash, zsh or fish",
       .value_name = "SHELL",
       .text = [name = line.name](const std::string& shell) {
         return CompletionScript(name, shell);
       }});
  return line;
}

/// A file of a store must not get the number of a standard stream that is closed: what the program
/// prints would be written to it. Writes to the file that is opened here instead fail.
void OpenClosedStreams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) (void)::open("/dev/null", O_RDONLY);
  }
}

}  // namespace

int RunProgram(const CommandLine& given, int argc, char** argv) {
  OpenClosedStreams();
  // A write beyond the limit of the size of files fails with an error that names the file.
  std::signal(SIGXFSZ, SIG_IGN);
  // LC_CTYPE decides only how wide characters are; numbers keep their decimal point.
  std::setlocale(LC_CTYPE, "");
  const auto fail = [&](std::string_view what) {
    std::fflush(stdout);
    WriteStderr(fmt::format("{}: {}\n", given.name, what));
    return static_cast<int>(kExitFailed);
  };
  try {
    const CommandLine line = WithCompletion(given);
    const Verb* verb = nullptr;
    const Result<int> status = ParseAndRun(line, argc, argv, verb);
    if (status) return *status;
    std::string what = EscapeText(status.error().ToString());
    const std::string next = verb == nullptr ? "" : NextStep(*verb, status.error());
    if (!next.empty()) what += "; " + next;
    return fail(what);
  } catch (const std::bad_alloc&) {
    return fail("out of memory");
  } catch (const std::exception& error) {
    return fail(fmt::format("internal error: {}", EscapeText(error.what())));
  }
}

}  // namespace cairn::tools
