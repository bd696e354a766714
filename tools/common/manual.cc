// The manual page of a program: synopsis, options, verbs with their arguments and examples.

#include "tools/common/manual.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>

namespace cairn::tools {
namespace {

/// Returns text in which nothing is a request or an escape of roff.
std::string Escaped(std::string_view text) {
  std::string escaped;
  bool begins_line = true;
  for (const char c : text) {
    if (begins_line && (c == '.' || c == '\'')) escaped += "\\&";
    begins_line = c == '\n';
    switch (c) {
      case '\\':
        escaped += "\\e";
        break;
      case '-':
        escaped += "\\-";
        break;
      case '\'':
        escaped += "\\(aq";
        break;
      case '`':
        escaped += "\\(ga";
        break;
      case '^':
        escaped += "\\(ha";
        break;
      case '~':
        escaped += "\\(ti";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string UpperCase(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

void AppendVerbatim(std::string_view text, std::string& page) {
  page += fmt::format(".PP\n.nf\n.RS 4\n{}\n.RE\n.fi\n", Escaped(text));
}

void AppendOption(const std::string& name, const std::string& value_name, const std::string& help,
                  std::string& page) {
  const std::string value = value_name.empty() ? "" : " " + value_name;
  page += fmt::format(".TP\n.B {}\n{}\n", Escaped(name + value), Escaped(help));
}

void AppendArgument(const Argument& argument, std::string& page) {
  std::string help = argument.help;
  if (!argument.choices.empty()) {
    help += fmt::format(" (one of {})", fmt::join(argument.choices, ", "));
  }
  AppendOption(argument.name, argument.value_name, help, page);
}

void AppendVerb(const std::string& program, const Verb& verb, std::string& page) {
  page += fmt::format(".SS {}\n{}.\n", Escaped(verb.name), Escaped(verb.summary));
  AppendVerbatim(fmt::format("{} {}", program, verb.usage), page);
  for (const Argument& argument : verb.arguments) AppendArgument(argument, page);
  if (!verb.examples.empty()) {
    page += ".PP\nExamples:\n";
    AppendVerbatim(fmt::format("{}", fmt::join(verb.examples, "\n")), page);
  }
  if (!verb.notes.empty()) page += fmt::format(".PP\n{}\n", Escaped(verb.notes));
}

}  // namespace

std::string ManualPage(const CommandLine& line) {
  std::string page = fmt::format(".TH {} 1 \"\" \"Cairn {}\" \"Cairn\"\n",
                                 Escaped(UpperCase(line.name)), Escaped(line.version));
  std::string purpose = line.summary;
  if (purpose.ends_with('.')) purpose.pop_back();
  page += fmt::format(".SH NAME\n{} \\- {}\n", Escaped(line.name), Escaped(purpose));
  page += ".SH SYNOPSIS\n";
  std::string usage = line.usage;  // its lines are indented to follow "Usage: "
  for (size_t at; (at = usage.find("\n ")) != std::string::npos;) usage.erase(at + 1, 1);
  AppendVerbatim(usage, page);
  page += ".SH OPTIONS\n";
  for (const Argument& argument : line.arguments) AppendArgument(argument, page);
  for (const TextOption& option : line.texts) {
    AppendOption(option.name, option.value_name, option.help, page);
  }
  AppendOption("--version", "", "Name and version", page);
  page += ".SH VERBS\n";
  for (const Verb& verb : line.verbs) {
    if (!verb.hidden) AppendVerb(line.name, verb, page);
  }
  page += ".SH NOTES\n";
  AppendVerbatim(line.notes, page);
  return page;
}

}  // namespace cairn::tools
