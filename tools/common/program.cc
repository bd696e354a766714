// What the programs share: reading the command line, exit statuses, the one line of an error.

#include "tools/common/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <clocale>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>

#include "tools/common/text.h"

namespace cairn::tools::internal {
namespace {

/// CLI11's own usage line and option types say too little in too many words.
class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(std::string usage) : usage_(std::move(usage)) {
    label("Positionals", "Arguments");
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

 private:
  std::string usage_;
};

/// CLI11 reads a word "[abc]" as a list and drops the brackets, which would turn the pattern of a
/// set into something else. A mark at its end keeps the word whole; it is taken off as it is
/// parsed.
constexpr char kBracketMark = '\x1f';

void MarkBrackets(std::vector<std::string>& words) {
  for (std::string& word : words) {
    if (word.starts_with('[') && word.ends_with(']')) word += kBracketMark;
  }
}

void UnmarkBrackets(CLI::App& app) {
  const CLI::Validator unmark(
      [](std::string& word) {
        if (word.ends_with(kBracketMark)) word.pop_back();
        return std::string();
      },
      "");
  for (CLI::App* verb : app.get_subcommands({})) {
    for (CLI::Option* option : verb->get_options()) option->transform(unmark);
  }
}

std::string OneLine(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

int RunProgram(std::string_view name, const std::function<Result<int>()>& body) {
  // Only for the width of characters; numbers keep their decimal point.
  std::setlocale(LC_CTYPE, "");
  const auto complain = [&](std::string_view what) {
    std::fflush(stdout);
    fmt::print(stderr, "{}: {}\n", name, what);
    return static_cast<int>(kExitFailed);
  };
  try {
    const Result<int> status = body();
    if (!status) return complain(EscapeText(status.error().ToString()));
    return *status;
  } catch (const std::bad_alloc&) {
    return complain("out of memory");
  } catch (const std::exception& error) {
    return complain(fmt::format("internal error: {}", EscapeText(error.what())));
  }
}

Result<bool> ParseCommandLine(CLI::App& app, std::vector<std::string> arguments) {
  if (arguments.empty()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("say what to do; {} --help tells how", app.get_name()));
  }
  MarkBrackets(arguments);
  UnmarkBrackets(app);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  try {
    app.parse(arguments);
    return true;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      app.exit(error);  // help or version, to standard output
      return false;
    }
    std::string verb;
    for (const CLI::App* parsed : app.get_subcommands()) verb = " " + parsed->get_name();
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{} (see {}{} --help)", OneLine(error.what()), app.get_name(), verb));
  }
}

std::vector<std::string> JoinValues(int argc, char** argv,
                                    std::span<const std::string_view> options) {
  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const bool takes_value = std::find(options.begin(), options.end(), word) != options.end();
    if (takes_value && i + 1 < argc) {
      arguments.push_back(fmt::format("{}={}", word, argv[++i]));
    } else {
      arguments.emplace_back(word);
    }
  }
  return arguments;
}

Result<void> InsertDefaultVerb(std::vector<std::string>& arguments,
                               std::span<const std::string_view> verbs,
                               std::string_view default_verb) {
  const auto is_word = [](const std::string& text) { return !text.starts_with("-"); };
  const auto first = std::find_if(arguments.begin(), arguments.end(), is_word);
  if (first == arguments.end()) return {};
  if (std::find(verbs.begin(), verbs.end(), *first) != verbs.end()) return {};
  if (std::count_if(arguments.begin(), arguments.end(), is_word) > 1) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("'{}' is no verb; there are {}", EscapeText(*first), fmt::join(verbs, ", ")));
  }
  arguments.insert(arguments.begin(), std::string(default_verb));
  return {};
}

void StyleHelp(CLI::App& app, const std::string& usage) {
  auto formatter = std::make_shared<HelpFormatter>(usage);
  formatter->column_width(26);
  app.formatter(std::move(formatter));
  app.set_help_flag("-h,--help", "This text");
}

void StyleProgram(CLI::App& app, const std::string& usage, const std::string& version) {
  StyleHelp(app, usage);
  app.require_subcommand(1);
  app.set_version_flag("--version", app.get_name() + " " + version)
      ->description("Name and version");
}

void SetExamples(CLI::App& verb, const std::vector<std::string>& examples) {
  std::string text = "Examples:";
  for (const std::string& example : examples) text += "\n  " + example;
  verb.footer(text);
}

}  // namespace cairn::tools::internal
