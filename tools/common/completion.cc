// Completion of command lines: candidates from the declaration of a program and from stores.

#include "tools/common/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <ranges>
#include <regex>
#include <span>
#include <string_view>
#include <utility>
#include <variant>

#include "core/checkpoint_store.h"
#include "core/state_dict/key_pattern.h"
#include "kv/base/key.h"
#include "kv/base/step_info.h"
#include "kv/read/snapshot.h"
#include "kv/storage/open/open_storage.h"
#include "tools/common/address.h"
#include "tools/common/quantities.h"

namespace cairn::tools {
namespace {

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

}  // namespace

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

}  // namespace cairn::tools
