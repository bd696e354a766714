// Completion of command lines: candidates from the declaration of a program and from stores.

#include "tools/common/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <string_view>

#include "core/checkpoint_store.h"
#include "kv/base/key.h"
#include "kv/read/snapshot.h"
#include "kv/storage/open/open_storage.h"
#include "tools/common/address.h"
#include "tools/common/quantities.h"

namespace cairn::tools {
namespace {

constexpr size_t kMaxSteps = 200;
constexpr size_t kMaxKeys = 500;

/// Returns null if the store is not in a directory, because others may take long to answer, or
/// cannot be opened.
std::unique_ptr<core::CheckpointStore> OpenLocal(const std::string& store) {
  const auto storage = kv::OpenStorage(store);  // sends no request
  if (!storage || (*storage)->local_files() == nullptr) return nullptr;
  auto opened = core::CheckpointStore::Open(store, kv::OpenMode::kRead, {});
  return opened ? *std::move(opened) : nullptr;
}

/// Returns an FQN up to the "." that ends the path element in which `typed` ends.
std::string UpToNextElement(std::string_view fqn, std::string_view typed) {
  const size_t end = fqn.find('.', typed.size());
  return std::string(end == std::string_view::npos ? fqn : fqn.substr(0, end + 1));
}

/// Returns the newest steps of a store, newest first, and its tags.
std::vector<Candidate> StepWords(const std::string& store) {
  const auto opened = OpenLocal(store);
  if (opened == nullptr) return {};
  const auto snapshot = opened->kv().Latest();
  if (!snapshot) return {};
  std::vector<Candidate> words;
  const auto steps = (*snapshot)->Steps();
  if (steps) {
    for (auto step = steps->rbegin(); step != steps->rend() && words.size() < kMaxSteps; ++step) {
      words.push_back(
          {.word = fmt::format("{}", step->step), .help = HumanBytes(step->logical_bytes)});
    }
  }
  for (const auto& [tag, step] : (*snapshot)->tags()) {
    words.push_back({.word = tag, .help = fmt::format("tag of step {}", step)});
  }
  return words;
}

/// Returns the keys of the step of `address` that begin with `typed`, up to the end of the next
/// path element: "model." and not each key below it.
std::vector<Candidate> KeyWords(const std::string& address, std::string_view typed) {
  const auto parsed = ParseAddress(address);
  if (!parsed) return {};
  const auto opened = OpenLocal(parsed->store);
  if (opened == nullptr) return {};
  const auto snapshot = opened->kv().Latest();
  if (!snapshot) return {};
  const auto step = (*snapshot)->FindStep(parsed->step);
  if (!step) return {};
  std::vector<Candidate> words;
  for (const kv::Column column : {kv::Column::kTensors, kv::Column::kValues}) {
    std::string last;
    (void)(*snapshot)->Scan(column, *step, typed,
                            [&](std::string_view key, std::span<const std::byte>) -> Result<bool> {
                              CAIRN_TRY_ASSIGN(const kv::ParsedKey fqn, kv::ParseKey(key));
                              std::string word = UpToNextElement(fqn.fqn, typed);
                              if (word == last) return true;
                              last = word;
                              words.push_back({.word = std::move(word), .help = ""});
                              return words.size() < kMaxKeys;
                            });
  }
  return words;
}

bool IsOption(std::string_view word) { return word.size() > 1 && word.starts_with('-'); }

bool TakesValue(const Argument& argument) {
  return !std::holds_alternative<bool*>(argument.target);
}

bool TakesMany(const Argument& argument) {
  return std::holds_alternative<std::vector<std::string>*>(argument.target) ||
         std::holds_alternative<std::vector<uint64_t>*>(argument.target);
}

// The names of arguments state what their values are.
bool NamesStep(const Argument& argument) { return argument.name.find('@') != std::string::npos; }
bool NamesStore(const Argument& argument) {
  return argument.name.starts_with("STORE") || argument.name.starts_with("FROM");
}
bool NamesKey(const Argument& argument) {
  return argument.name == "FQN" || argument.name == "PATTERN";
}

const Argument* FindOption(const Verb& verb, std::string_view name) {
  const auto found = std::ranges::find(verb.arguments, name, &Argument::name);
  return found == verb.arguments.end() ? nullptr : &*found;
}

/// The words before the word that is completed.
struct Before {
  const Argument* awaits_value = nullptr;  // the option that the previous word names
  size_t positional_count = 0;
  std::string address;  // the first word that is an address
};

const Argument* PositionalAt(const Verb& verb, size_t index) {
  const Argument* last = nullptr;
  for (const Argument& argument : verb.arguments) {
    if (IsOption(argument.name)) continue;
    last = &argument;
    if (index-- == 0) return last;
  }
  return last != nullptr && TakesMany(*last) ? last : nullptr;
}

Before ReadBefore(const Verb& verb, const std::vector<std::string>& words, size_t first) {
  Before before;
  for (size_t i = first; i + 1 < words.size(); ++i) {
    const std::string& word = words[i];
    if (before.awaits_value != nullptr) {
      before.awaits_value = nullptr;
    } else if (IsOption(word)) {
      const Argument* option = FindOption(verb, word);
      if (option != nullptr && TakesValue(*option)) before.awaits_value = option;
    } else {
      const Argument* argument = PositionalAt(verb, before.positional_count++);
      const bool is_store = argument != nullptr && NamesStore(*argument);
      if (is_store && before.address.empty()) before.address = word;
    }
  }
  return before;
}

void AddIfBegins(const std::string& word, std::string candidate, std::string help,
                 std::vector<Candidate>& candidates) {
  if (!candidate.starts_with(word)) return;
  candidates.push_back({.word = std::move(candidate), .help = std::move(help)});
}

std::vector<Candidate> CompleteValue(const Argument& argument, const Before& before,
                                     const std::string& word) {
  std::vector<Candidate> candidates;
  for (const std::string& choice : argument.choices) AddIfBegins(word, choice, "", candidates);
  if (NamesStep(argument)) {
    const size_t at = word.rfind('@');
    if (at == std::string::npos) return candidates;
    // The second address of a diff may omit the store.
    const std::string store = word.substr(0, at);
    const std::string opened = store.empty() ? StoreOf(before.address) : store;
    for (Candidate& step : StepWords(opened)) {
      AddIfBegins(word, fmt::format("{}@{}", store, step.word), std::move(step.help), candidates);
    }
  }
  if (NamesKey(argument)) {
    std::ranges::move(KeyWords(before.address, word), std::back_inserter(candidates));
  }
  return candidates;
}

std::vector<Candidate> CompleteOptions(const std::vector<Argument>& arguments,
                                       const std::string& word) {
  std::vector<Candidate> candidates;
  for (const Argument& argument : arguments) {
    if (IsOption(argument.name)) AddIfBegins(word, argument.name, argument.help, candidates);
  }
  AddIfBegins(word, "--help", "Help with examples", candidates);
  return candidates;
}

std::vector<Candidate> CompleteFirst(const CommandLine& line, const std::string& word) {
  if (IsOption(word)) {
    std::vector<Candidate> candidates = CompleteOptions(line.arguments, word);
    AddIfBegins(word, "--version", "Name and version", candidates);
    return candidates;
  }
  std::vector<Candidate> candidates;
  for (const Verb& verb : line.verbs) {
    if (!verb.hidden) AddIfBegins(word, verb.name, verb.summary, candidates);
  }
  return candidates;
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

std::string Replaced(std::string_view text, std::string_view old, std::string_view with) {
  std::string replaced;
  for (size_t found; (found = text.find(old)) != std::string_view::npos;) {
    replaced.append(text.substr(0, found)).append(with);
    text.remove_prefix(found + old.size());
  }
  return replaced.append(text);
}

}  // namespace

std::vector<Candidate> Complete(const CommandLine& line, const std::vector<std::string>& words) {
  if (words.empty()) return {};
  const auto is_verb = [&](const std::string& word) {
    return std::ranges::find(line.verbs, word, &Verb::name) != line.verbs.end();
  };
  size_t first = 0;  // the verb, after options of the program
  while (first + 1 < words.size() && IsOption(words[first])) ++first;
  std::string name = words[first];
  if (first + 1 == words.size()) {
    std::vector<Candidate> candidates = CompleteFirst(line, name);
    if (!candidates.empty() || line.default_verb.empty()) return candidates;
    name = line.default_verb;  // the word may be a store
  } else if (is_verb(name)) {
    ++first;
  } else {
    return {};
  }
  const auto verb = std::ranges::find(line.verbs, name, &Verb::name);
  if (verb == line.verbs.end()) return {};
  const Before before = ReadBefore(*verb, words, first);
  const std::string& word = words.back();
  if (before.awaits_value != nullptr) return CompleteValue(*before.awaits_value, before, word);
  if (word.starts_with('-')) return CompleteOptions(verb->arguments, word);
  const Argument* argument = PositionalAt(*verb, before.positional_count);
  return argument == nullptr ? std::vector<Candidate>() : CompleteValue(*argument, before, word);
}

std::string CandidateLines(const std::vector<Candidate>& candidates) {
  std::string lines;
  for (const Candidate& candidate : candidates) {
    // A shell shows one line, and no character of a name acts on the terminal.
    const auto is_control = [](char c) {
      return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    };
    if (std::ranges::any_of(candidate.word, is_control)) continue;
    std::string help = candidate.help;
    std::ranges::replace_if(help, is_control, ' ');
    lines += candidate.word;
    if (!help.empty()) lines.append("\t").append(help);
    lines += "\n";
  }
  return lines;
}

Result<std::string> CompletionScript(const std::string& program, const std::string& shell) {
  std::string_view script;
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
  return Replaced(Replaced(script, "FUNCTION", function), "NAME", program);
}

}  // namespace cairn::tools
