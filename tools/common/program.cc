// The `main` function that all programs share, and the completion of their command lines.
//
// The script of a shell calls `NAME --complete WORD...` for each Tab, so that the declaration of
// the program is the only list of verbs, options and choices.

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <ranges>
#include <regex>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/hint_text.h"
#include "core/checkpoint_store.h"
#include "core/state_dict/key_pattern.h"
#include "kv/base/key.h"
#include "kv/base/step_info.h"
#include "kv/read/snapshot.h"
#include "kv/storage/open/open_storage.h"
#include "tools/common/address.h"
#include "tools/common/command_line.h"
#include "tools/common/exit_status.h"
#include "tools/common/quantities.h"
#include "tools/common/terminal.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

// --- Completion: candidates from the declaration of a program and from stores

constexpr size_t kMaxSteps = 200;
constexpr size_t kMaxKeys = 500;

/// Words that begin with what the user has typed, as lines of a word and, after a tab, its help.
class Candidates {
 public:
  explicit Candidates(std::string_view typed) : typed_(typed) {}

  void Add(std::string_view word, std::string help = "") {
    // A shell shows one line, and no character of a name acts on the terminal.
    const auto is_control = [](char c) {
      return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    };
    if (!word.starts_with(typed_) || std::ranges::any_of(word, is_control)) return;
    std::ranges::replace_if(help, is_control, ' ');
    lines_ += fmt::format("{}{}{}\n", word, help.empty() ? "" : "\t", help);
  }
  std::string_view typed() const { return typed_; }
  const std::string& lines() const { return lines_; }

 private:
  std::string_view typed_;
  std::string lines_;
};

/// Fails also if the store is not in a directory, because others may take long to answer.
Result<std::unique_ptr<core::CheckpointStore>> OpenLocal(const std::string& store) {
  CAIRN_TRY_ASSIGN(const auto storage, kv::OpenStorage(store));  // sends no request
  if (storage->local_files() == nullptr) return Fail(ErrorCode::kUnavailable, "not a directory");
  return core::CheckpointStore::Open(store, kv::OpenMode::kRead, {});
}

/// Adds the newest steps of a store, newest first, and its tags, each after `prefix`.
Result<void> AddSteps(const std::string& store, const std::string& prefix, Candidates& candidates) {
  CAIRN_TRY_ASSIGN(const auto opened, OpenLocal(store));
  CAIRN_TRY_ASSIGN(const auto snapshot, opened->kv().Latest());
  CAIRN_TRY_ASSIGN(const std::vector<kv::StepInfo> steps, snapshot->Steps());
  for (const kv::StepInfo& step : steps | std::views::reverse | std::views::take(kMaxSteps)) {
    candidates.Add(fmt::format("{}{}", prefix, step.step), HumanBytes(step.logical_bytes));
  }
  for (const auto& [tag, step] : snapshot->tags()) {
    candidates.Add(prefix + tag, fmt::format("tag of step {}", step));
  }
  return {};
}

/// Adds the keys of the step of `address` up to the end of the path element that is typed: "model."
/// and not each key below it. Patterns get escapes; those that are typed are not understood.
Result<void> AddKeys(const std::string& address, bool are_patterns, Candidates& candidates) {
  CAIRN_TRY_ASSIGN(const Address parsed, ParseAddress(address));
  CAIRN_TRY_ASSIGN(const auto opened, OpenLocal(parsed.store));
  CAIRN_TRY_ASSIGN(const auto snapshot, opened->kv().Latest());
  CAIRN_TRY_ASSIGN(const kv::StepInfo step, snapshot->FindStep(parsed.step));
  size_t count = 0;
  for (const kv::Column column : {kv::Column::kTensors, kv::Column::kValues}) {
    std::string last;
    const auto add = [&](std::string_view key, std::span<const std::byte>) -> Result<bool> {
      CAIRN_TRY_ASSIGN(const kv::ParsedKey parsed_key, kv::ParseKey(key));
      const std::string_view fqn = parsed_key.fqn;
      const size_t dot = fqn.find('.', candidates.typed().size());
      std::string word(fqn.substr(0, dot == std::string_view::npos ? dot : dot + 1));
      if (word == last) return true;
      candidates.Add(are_patterns ? core::LiteralPattern(word) : word);
      last = std::move(word);
      return ++count < kMaxKeys;
    };
    CAIRN_TRY(snapshot->Scan(column, step, candidates.typed(), add));
  }
  return {};
}

bool IsOption(std::string_view word) { return word.starts_with('-'); }

/// Returns the positional argument at `index`, of which the last one may take all that follow; null
/// if there is none.
const Argument* PositionalAt(const Verb& verb, size_t index) {
  const Argument* last = nullptr;
  for (const Argument& argument : verb.arguments) {
    if (IsOption(argument.name)) continue;
    last = &argument;
    if (index-- == 0) return last;
  }
  const bool takes_many =
      last != nullptr && (std::holds_alternative<std::vector<std::string>*>(last->target) ||
                          std::holds_alternative<std::vector<uint64_t>*>(last->target));
  return takes_many ? last : nullptr;
}

/// Returns the option with this name that takes a value; null if there is none.
const Argument* FindOptionWithValue(const Verb& verb, std::string_view name) {
  const auto found = std::ranges::find_if(verb.arguments, [&](const Argument& argument) {
    return argument.name == name && !std::holds_alternative<bool*>(argument.target);
  });
  return found == verb.arguments.end() ? nullptr : &*found;
}

void AddOptions(const std::vector<Argument>& arguments, Candidates& candidates) {
  for (const Argument& argument : arguments) {
    if (IsOption(argument.name)) candidates.Add(argument.name, argument.help);
  }
  candidates.Add("--help", "Help with examples");
}

/// Adds values of an argument, whose name states what they are. `address` is the first one before
/// it. What cannot be read from a store is left out.
void AddValues(const Argument& argument, const std::string& address, Candidates& candidates) {
  for (const std::string& choice : argument.choices) candidates.Add(choice);
  const std::string typed(candidates.typed());
  const size_t at = typed.rfind('@');
  if (argument.name.contains('@') && at != std::string::npos) {
    // The second address of a diff may omit the store.
    const std::string store = at == 0 ? StoreOf(address) : typed.substr(0, at);
    (void)AddSteps(store, typed.substr(0, at + 1), candidates);
  }
  const bool is_pattern = argument.name == "PATTERN";
  if (is_pattern || argument.name == "FQN") (void)AddKeys(address, is_pattern, candidates);
}

constexpr std::string_view kBash = R"(# bash completion of NAME
_FUNCTION() {
    local line=${COMP_LINE:0:COMP_POINT} IFS=$' \t\n'
    local -a words
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=('')
    # readline replaces only what follows the last character of COMP_WORDBREAKS, and '@' itself.
    local word=${words[${#words[@]} - 1]} kept= candidate
    case $COMP_WORDBREAKS in
        *@*) [[ $word == *@* ]] && kept=${word%@*} ;;
    esac
    COMPREPLY=()
    while IFS=$'\t' read -r candidate _; do
        COMPREPLY+=("${candidate#"$kept"}")
        [[ $candidate == *. ]] && compopt -o nospace
    done < <(NAME --complete "${words[@]:1}" 2> /dev/null)
}
complete -o default -F _FUNCTION NAME
)";

// The function has the name of the file, from which zsh loads it.
constexpr std::string_view kZsh = R"(#compdef NAME
# zsh completion of NAME
_NAME() {
    local -a complete partial
    local line word
    for line in "${(@f)$(NAME --complete "${(@Q)words[2,CURRENT]}" 2> /dev/null)}"; do
        [[ -z $line ]] && continue
        word=${${line%%$'\t'*}//:/\\:}
        [[ $line == *$'\t'* ]] && word+=":${line#*$'\t'}"
        if [[ ${line%%$'\t'*} == *. ]]; then partial+=("$word"); else complete+=("$word"); fi
    done
    if (( ! $#complete && ! $#partial )); then
        _files
        return
    fi
    (( $#complete )) && _describe -t values value complete
    (( $#partial )) && _describe -t values value partial -S ''
}
if [[ $funcstack[1] == _NAME ]]; then _NAME "$@"; else compdef _NAME NAME; fi
)";

constexpr std::string_view kFish = R"(# fish completion of NAME
function __FUNCTION
    set -l words (commandline -opc)
    set -l candidates (NAME --complete $words[2..] (commandline -ct) 2> /dev/null)
    if test (count $candidates) -gt 0
        printf '%s\n' $candidates
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c NAME -f -a '(__FUNCTION)'
)";

/// Returns what the last of `words`, which may be empty, can be completed to; the others precede it
/// on the command line, without the name of the program. Each line has a word and, after a tab, its
/// help if there is some; without lines, the word may be any file. Opens a store in a directory to
/// find its steps, tags and keys. Never fails: what cannot be found is left out.
std::string CompletionLines(const CommandLine& line, const std::vector<std::string>& words) {
  if (words.empty()) return "";
  const std::string& typed = words.back();
  Candidates candidates(typed);
  const Verb* verb = nullptr;
  const Argument* option = nullptr;  // the word before is this option, which takes a value
  size_t positional_count = 0;
  std::string address;  // the first one
  for (const std::string& word : words | std::views::take(words.size() - 1)) {
    if (option != nullptr) {
      option = nullptr;
    } else if (IsOption(word)) {
      if (verb != nullptr) option = FindOptionWithValue(*verb, word);
    } else if (verb == nullptr) {
      verb = FindVerb(line, word);
      if (verb == nullptr) return "";
    } else {
      const Argument* const argument = PositionalAt(*verb, positional_count++);
      if (argument != nullptr && NamesStore(*argument) && address.empty()) address = word;
    }
  }
  if (verb == nullptr && IsOption(typed)) {
    AddOptions(line.arguments, candidates);
    candidates.Add("--version", "Name and version");
    return candidates.lines();
  }
  if (verb == nullptr) {
    for (const Verb& each : line.verbs) {
      if (!each.hidden) candidates.Add(each.name, each.summary);
    }
    // If there is none, the word may be the store of the default verb.
    verb = FindVerb(line, line.default_verb);
    if (verb == nullptr || !candidates.lines().empty()) return candidates.lines();
  }
  const Argument* const argument =
      option != nullptr ? option : PositionalAt(*verb, positional_count);
  if (option == nullptr && IsOption(typed)) {
    AddOptions(verb->arguments, candidates);
  } else if (argument != nullptr) {
    AddValues(*argument, address, candidates);
  }
  return candidates.lines();
}

/// Returns the script for "bash", "zsh" or "fish". kInvalidArgument: another shell.
Result<std::string> CompletionScript(const std::string& program, const std::string& shell) {
  std::string script;
  if (shell == "bash") script = kBash;
  if (shell == "zsh") script = kZsh;
  if (shell == "fish") script = kFish;
  if (script.empty()) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "--completion: there is no completion for '{}'; the shells are bash, zsh and fish",
            shell));
  }
  std::string function = program;
  std::ranges::replace(function, '-', '_');
  script = std::regex_replace(script, std::regex("FUNCTION"), function);
  return std::regex_replace(script, std::regex("NAME"), program);
}

// --- Programs

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
