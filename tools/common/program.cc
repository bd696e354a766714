// The `main` function that all programs share.

#include "tools/common/program.h"

#include <fmt/format.h>

#include <clocale>
#include <cstdio>
#include <exception>
#include <new>
#include <string_view>

#include "tools/common/exit_status.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

Result<int> ParseAndRun(const CommandLine& line, int argc, char** argv) {
  CAIRN_TRY_ASSIGN(const Verb* const verb,
                   ParseCommandLine(line, std::vector<std::string>(argv + 1, argv + argc)));
  if (verb == nullptr) return kExitSuccess;
  Output out;
  CAIRN_TRY_ASSIGN(const int status, verb->run(out));
  CAIRN_TRY(out.Finish());
  return status;
}

}  // namespace

int RunProgram(const CommandLine& line, int argc, char** argv) {
  // LC_CTYPE decides only how wide characters are; numbers keep their decimal point.
  std::setlocale(LC_CTYPE, "");
  const auto fail = [&](std::string_view what) {
    std::fflush(stdout);
    fmt::print(stderr, "{}: {}\n", line.name, what);
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
