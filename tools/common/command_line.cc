// Command lines that consist of a verb, its arguments and its options, parsed by CLI11.

#include "tools/common/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string_view>
#include <system_error>
#include <type_traits>

#include "core/base/close_name.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

constexpr uint32_t kHelpColumns = 100;  // lines that are longer are hard to read
constexpr uint32_t kNameColumns = 26;

uint32_t HelpColumns() {
  const uint32_t terminal_columns = Output().width_columns();
  return terminal_columns == 0 ? kHelpColumns : std::min(terminal_columns, kHelpColumns);
}

/// Breaks text between words, so that no line has more than `columns` characters if a word fits.
std::string Wrapped(std::string_view text, size_t columns) {
  std::string wrapped;
  size_t used = 0;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    if (used > 0 && used + 1 + word.size() > columns) {
      wrapped += '\n';
      used = 0;
    }
    if (used > 0) wrapped += ' ';
    wrapped += word;
    used += word.size() + (used > 0 ? 1 : 0);
    text.remove_prefix(std::min(text.size(), word.size() + 1));
  }
  return wrapped;
}

/// Replaces the usage line and the option types of CLI11, which are long and not specific, and
/// wraps the descriptions.
class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(std::string usage) : usage_(std::move(usage)) {
    label("Positionals", "Arguments");
    column_width(kNameColumns);
  }
  std::string make_usage(const CLI::App*, std::string) const override {
    return fmt::format("\nUsage: {}\n", usage_);
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string type = option->get_type_name();
    const std::string value = option->get_default_str();
    std::string text = type.empty() || option->get_type_size() == 0 ? "" : " " + type;
    if (!value.empty()) text += " (" + value + ")";
    return text;
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    return Wrapped(option->get_description(), columns_ - kNameColumns);
  }

 private:
  std::string usage_;
  const uint32_t columns_ = HelpColumns();
};

void StyleHelp(CLI::App& app, const std::string& usage) {
  app.formatter(std::make_shared<HelpFormatter>(usage));
  app.set_help_flag("-h,--help", "This text");
}

/// CLI11 reads a word "[abc]" as a list and removes the brackets, which would change a pattern that
/// is one set of characters. A mark at the end of the word prevents that; it is removed when the
/// value is stored.
constexpr char kBracketMark = '\x1f';

void MarkBrackets(std::vector<std::string>& words) {
  for (std::string& word : words) {
    if (word.starts_with('[') && word.ends_with(']')) word += kBracketMark;
  }
}

const CLI::Validator& UnmarkBrackets() {
  static const CLI::Validator unmark(
      [](std::string& word) {
        if (word.ends_with(kBracketMark)) word.pop_back();
        return std::string();
      },
      "");
  return unmark;
}

/// Refuses what is not one of the choices, which the help lists.
CLI::Validator IsChoice(const std::vector<std::string>& choices) {
  return {[choices](std::string& word) {
            if (std::ranges::find(choices, word) != choices.end()) return std::string();
            const auto close = core::FindCloseName(word, choices);
            return close ? fmt::format("'{}' is not accepted; did you mean {}?", word, *close)
                         : fmt::format("'{}' is not accepted; write {}", word,
                                       fmt::join(choices, ", "));
          },
          fmt::format("{{{}}}", fmt::join(choices, ","))};
}

/// Refuses what is not a number of this type. CLI11 would take 0100 for the octal 64 and -1 for
/// 2^64 - 1, which may be the number of another step.
template <typename Number>
CLI::Validator IsNumber(std::string_view kind, std::string_view example) {
  return {[kind, example](std::string& word) {
            auto number = ParseWhole<Number>(word);
            if constexpr (std::is_floating_point_v<Number>) {
              if (number && !std::isfinite(*number)) number.reset();
            } else {
              if (number) word = std::to_string(*number);  // without leading zeros
            }
            if (number) return std::string();
            return fmt::format("'{}' is not {}; write one such as {}", word, kind, example);
          },
          ""};
}

/// Adds an argument, with the check of its type, whose error states what to write.
void AddArgument(CLI::App& app, const Argument& argument) {
  CLI::Option* const option = std::visit(
      [&](auto* target) {
        using Target = std::remove_pointer_t<decltype(target)>;
        if constexpr (std::is_same_v<Target, bool>) {
          return app.add_flag(argument.name, *target, argument.help);
        } else {
          CLI::Option* const added = app.add_option(argument.name, *target, argument.help);
          if constexpr (std::is_same_v<Target, double>) {
            added->transform(IsNumber<double>("a number", "0.5"));
          } else if constexpr (std::is_same_v<Target, int>) {
            added->transform(IsNumber<int>("a whole number", "4"));
          } else if constexpr (!std::is_same_v<Target, std::string> &&
                               !std::is_same_v<Target, std::vector<std::string>>) {
            added->transform(IsNumber<uint64_t>("a whole number from 0 to 2^64 - 1", "100"));
          }
          return added->type_name(argument.value_name);
        }
      },
      argument.target);
  if (argument.required) option->required();
  if (!argument.choices.empty()) option->check(IsChoice(argument.choices));
  if (argument.range) {
    std::visit([&](const auto& range) { option->check(CLI::Range(range.first, range.second)); },
               *argument.range);
  }
}

void AddVerb(CLI::App& app, const CommandLine& line, const Verb& verb) {
  CLI::App* added = app.add_subcommand(verb.name, verb.summary)->group(verb.hidden ? "" : "Verbs");
  StyleHelp(*added, line.name + " " + verb.usage);
  for (const Argument& argument : verb.arguments) AddArgument(*added, argument);
  // A transformation precedes the checks of an option.
  for (CLI::Option* option : added->get_options()) option->transform(UnmarkBrackets());
  if (verb.examples.empty()) return;
  std::string footer = "Examples:";
  for (const std::string& example : verb.examples) footer += "\n  " + example;
  if (!verb.notes.empty()) footer += "\n\n" + verb.notes;
  added->footer(footer);
}

std::unique_ptr<CLI::App> MakeParser(const CommandLine& line) {
  auto app = std::make_unique<CLI::App>(line.summary, line.name);
  StyleHelp(*app, line.usage);
  app->require_subcommand(1);
  app->set_version_flag("--version", line.name + " " + line.version)
      ->description("Name and version");
  for (const Argument& argument : line.arguments) AddArgument(*app, argument);
  for (const Verb& verb : line.verbs) AddVerb(*app, line, verb);
  app->footer(line.notes);
  return app;
}

Error InvalidLine(std::string message) {
  return {.code = ErrorCode::kInvalidArgument, .message = std::move(message)};
}

/// Returns the error for a word in the place of a verb.
Error UnknownVerb(const CommandLine& line, const std::string& word) {
  std::vector<std::string> names;
  for (const Verb& verb : line.verbs) {
    if (!verb.hidden) names.push_back(verb.name);
  }
  if (const auto close = core::FindCloseName(word, names)) {
    return InvalidLine(
               fmt::format("'{}' is not a verb; did you mean {}?", EscapeText(word), *close))
        .WithHint(Hint::kStated);
  }
  return InvalidLine(fmt::format("'{}' is not a verb; the verbs are {}", EscapeText(word),
                                 fmt::join(names, ", ")));
}

/// Returns the error for an option that neither the program (`verb` is null) nor the verb has.
Error UnknownOption(const CommandLine& line, const Verb* verb, const std::string& word) {
  const std::string option = word.substr(0, word.find('='));
  std::vector<std::string> names = {"--help"};
  for (const Argument& argument : verb != nullptr ? verb->arguments : line.arguments) {
    if (argument.name.starts_with('-')) names.push_back(argument.name);
  }
  if (verb == nullptr) names.push_back("--version");
  const std::string help = line.name + (verb == nullptr ? "" : " " + verb->name) + " --help";
  const auto close = core::FindCloseName(option, names);
  return InvalidLine(
      close ? fmt::format("there is no option '{}'; did you mean {}?", EscapeText(option), *close)
            : fmt::format("there is no option '{}'; run {} to list the options", EscapeText(option),
                          help));
}

/// Puts the default verb in front if the only word is not a verb. kInvalidArgument: the first of
/// several words is not a verb, or the only one is almost one and does not exist as a path.
Result<void> CheckVerb(const CommandLine& line, std::vector<std::string>& words) {
  const auto is_word = [](const std::string& text) { return !text.starts_with("-"); };
  const auto first = std::find_if(words.begin(), words.end(), is_word);
  if (first == words.end() || FindVerb(line, *first) != nullptr) return {};
  const bool is_only_word = std::count_if(words.begin(), words.end(), is_word) == 1;
  if (line.default_verb.empty() || !is_only_word) return Fail(UnknownVerb(line, *first));
  std::error_code ignored;  // an error counts as absent
  Error unknown = UnknownVerb(line, *first);
  if (unknown.hint == Hint::kStated && !std::filesystem::exists(*first, ignored)) {
    return Fail(std::move(unknown));
  }
  words.insert(words.begin(), line.default_verb);
  return {};
}

std::string OneLine(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

/// Returns the error of a command line that CLI11 has refused.
Error ParseErrorOf(const CommandLine& line, const CLI::App& app, const CLI::ParseError& error) {
  const Verb* verb = nullptr;
  for (const CLI::App* parsed : app.get_subcommands()) verb = FindVerb(line, parsed->get_name());
  const std::string usage = line.name + " " + (verb == nullptr ? line.usage : verb->usage);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr || verb == nullptr) {
    const std::vector<std::string> extras = app.remaining(true);
    for (const std::string& word : extras) {
      if (word.starts_with("-")) return UnknownOption(line, verb, word);
    }
    if (!extras.empty()) {
      return InvalidLine(fmt::format("'{}' is one argument too many; write {}",
                                     EscapeText(extras.front()), usage));
    }
  }
  const std::string what = OneLine(error.what());
  constexpr std::string_view kRequired = " is required";
  if (what.ends_with(kRequired)) {
    return InvalidLine(fmt::format("{} is missing; write {}",
                                   what.substr(0, what.size() - kRequired.size()), usage));
  }
  return InvalidLine(fmt::format("{} (see {}{} --help)", what, line.name,
                                 verb == nullptr ? "" : " " + verb->name));
}

}  // namespace

Argument Required(std::string name, ArgumentTarget target, std::string help) {
  return {.name = std::move(name), .target = target, .help = std::move(help), .required = true};
}

Argument Positional(std::string name, ArgumentTarget target, std::string help) {
  return {.name = std::move(name), .target = target, .help = std::move(help)};
}

Argument Flag(std::string name, bool& target, std::string help) {
  return Positional(std::move(name), &target, std::move(help));
}

Argument Option(std::string name, std::string value_name, ArgumentTarget target, std::string help,
                std::optional<ArgumentRange> range) {
  return {.name = std::move(name),
          .target = target,
          .help = std::move(help),
          .value_name = std::move(value_name),
          .range = range};
}

Argument RequiredOption(std::string name, std::string value_name, ArgumentTarget target,
                        std::string help) {
  Argument option = Option(std::move(name), std::move(value_name), target, std::move(help));
  option.required = true;
  return option;
}

const Verb* FindVerb(const CommandLine& line, const std::string& name) {
  const auto found = std::ranges::find(line.verbs, name, &Verb::name);
  return found == line.verbs.end() ? nullptr : &*found;
}

bool NamesStore(const Argument& argument) {
  return argument.name.starts_with("STORE") || argument.name.starts_with("FROM");
}

Result<const Verb*> ParseCommandLine(const CommandLine& line, std::vector<std::string> words) {
  CAIRN_TRY(CheckVerb(line, words));
  if (words.empty()) {
    return Fail(
        InvalidLine(fmt::format("a verb is missing; run {} --help to list the verbs", line.name)));
  }
  MarkBrackets(words);
  std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
  const std::unique_ptr<CLI::App> app = MakeParser(line);
  try {
    app->parse(words);
    return FindVerb(line, app->get_subcommands().front()->get_name());
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      app->exit(error);  // prints help or version on standard output
      if (!std::cout.flush()) return Fail(SystemError(errno, "writing to standard output"));
      return nullptr;
    }
    return Fail(ParseErrorOf(line, *app, error));
  }
}

}  // namespace cairn::tools
