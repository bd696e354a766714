// The `main` function that all programs share.

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/hint_text.h"
#include "tools/common/address.h"
#include "tools/common/command_line.h"
#include "tools/common/completion.h"
#include "tools/common/exit_status.h"
#include "tools/common/terminal.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

constexpr std::string_view kCompletion = "--completion";

/// Returns the text that `--complete WORD...` or `--completion SHELL` asks for; nothing if it is
/// another command line.
Result<std::optional<std::string>> CompletionText(const CommandLine& line,
                                                  const std::vector<std::string>& words) {
  if (!words.empty() && words[0] == "--complete") {
    return CompletionLines(line, {words.begin() + 1, words.end()});
  }
  if (words.size() < 2 || words[0] != kCompletion) return std::nullopt;
  return CompletionScript(line.name, words[1]);
}

/// Sets `verb`, which points into `line`, as soon as it is known.
Result<int> ParseAndRun(const CommandLine& line, const std::vector<std::string>& words,
                        const Verb*& verb) {
  Output out;
  CAIRN_TRY_ASSIGN(const auto completion, CompletionText(line, words));
  if (completion) {
    out.Write(*completion);
    CAIRN_TRY(out.Finish());
    return kExitSuccess;
  }
  CAIRN_TRY_ASSIGN(verb, ParseCommandLine(line, words));
  if (verb == nullptr) return kExitSuccess;
  CAIRN_TRY_ASSIGN(const int status, verb->run(out));
  if (auto written = out.Finish(); !written) {
    Error error = std::move(written).error();
    error.message = "the command was carried out, but its output is incomplete: " + error.message;
    return Fail(std::move(error));
  }
  return status;
}

/// Returns the first store of a command line as the user wrote it, with its step; empty: none.
std::string GivenStore(const Verb& verb) {
  for (const Argument& argument : verb.arguments) {
    if (!NamesStore(argument)) continue;
    if (const auto* const one = std::get_if<std::string*>(&argument.target)) return **one;
    const auto* const several = std::get_if<std::vector<std::string>*>(&argument.target);
    if (several != nullptr && !(*several)->empty()) return (*several)->front();
  }
  return "";
}

/// Returns the command or the option to try after a verb has failed; empty: nothing is known.
std::string NextStep(const Verb& verb, const Error& error) {
  const std::string given = GivenStore(verb);
  std::error_code ignored;  // an error counts as absent
  const bool is_path = std::filesystem::exists(AddressDirectory(given), ignored);
  std::string store = is_path ? given : given.substr(0, given.rfind('@'));
  const std::string place = AddressDirectory(store.substr(0, store.find('?')));
  const std::string of_object = core::StoreOfObject(error.file);
  // A command line may name several stores, and a file has none of the settings of an address.
  const bool is_given = of_object.empty() || of_object == place ||
                        of_object == std::filesystem::absolute(place, ignored).string();
  if (!is_given) store = of_object;
  const auto is_overwrite = [](const Argument& each) { return each.name == "--overwrite"; };
  const bool can_overwrite = std::ranges::any_of(verb.arguments, is_overwrite);
  const std::string step = error.step ? fmt::format("{}@{}", store, *error.step) : given;
  const core::HintTexts texts{
      .create_store = "kv-admin import and kv-admin push create stores",
      .open_for_writing = "",
      .overwrite = can_overwrite ? "--overwrite replaces it" : "",
      .list_steps = fmt::format("kv-dump steps {} lists all steps", ShellWord(store)),
      .list_keys = fmt::format("kv-dump keys {} lists all keys", ShellWord(step))};
  return core::HintText(error, texts, store, ShellWord);
}

/// A file of a store must not get the number of a standard stream that is closed: what the program
/// prints would be written to it. Writes to the file that is opened here instead fail.
void OpenClosedStreams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) (void)::open("/dev/null", O_RDONLY);
  }
}

}  // namespace

int RunProgram(CommandLine line, int argc, char** argv) {
  OpenClosedStreams();
  // A write beyond the limit of the size of files fails with an error that names the file.
  std::signal(SIGXFSZ, SIG_IGN);
  // LC_CTYPE decides only how wide characters are; numbers keep their decimal point.
  std::setlocale(LC_CTYPE, "");
  const auto fail = [&](std::string_view what) {
    std::fflush(stdout);
    WriteStderr(fmt::format("{}: {}\n", line.name, what));
    return static_cast<int>(kExitFailed);
  };
  try {
    std::string shell;  // CompletionText reads it first
    line.arguments.push_back(
        {.name = std::string(kCompletion),
         .target = &shell,
         .help = "Print the script that completes command lines in bash, zsh or fish",
         .value_name = "SHELL"});
    const Verb* verb = nullptr;
    const Result<int> status = ParseAndRun(line, {argv + 1, argv + argc}, verb);
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
