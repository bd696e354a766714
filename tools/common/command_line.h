#pragma once
/// Command lines that consist of a verb, its arguments and its options.
///
/// A program is declared as data (`CommandLine`, `Verb`, `Argument`); ParseCommandLine stores what
/// the user wrote in the program's variables. The parser library appears only in command_line.cc.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kv/base/error.h"
#include "tools/common/terminal.h"

namespace cairn::tools {

/// The variable that receives the value, which must outlive the parse. A `bool` makes the option a
/// flag without a value; a vector takes one value or more. The variable keeps its value if the
/// option is absent.
using ArgumentTarget =
    std::variant<bool*, int*, uint64_t*, double*, std::string*, std::optional<uint64_t>*,
                 std::vector<uint64_t>*, std::vector<std::string>*>;

/// Closed interval [least, most] of whole numbers or of real numbers.
using ArgumentRange = std::variant<std::pair<uint64_t, uint64_t>, std::pair<double, double>>;

/// An option ("--step") or a positional argument ("FILE"). Shells complete the steps of a value
/// whose name contains "@", and the keys of a value with the name FQN or PATTERN.
struct Argument {
  std::string name;
  ArgumentTarget target;
  std::string help;
  std::string value_name;  // follows the name of an option in the help: "--step N"
  bool required = false;
  std::vector<std::string> choices;  // the values that are accepted; empty: all
  std::optional<ArgumentRange> range;
};

// Arguments without choices.
Argument Required(std::string name, ArgumentTarget target, std::string help);
Argument Positional(std::string name, ArgumentTarget target, std::string help);  // not required
Argument Flag(std::string name, bool& target, std::string help);                 // without a value
Argument Option(std::string name, std::string value_name, ArgumentTarget target, std::string help,
                std::optional<ArgumentRange> range = std::nullopt);
Argument RequiredOption(std::string name, std::string value_name, ArgumentTarget target,
                        std::string help);

struct Verb {
  std::string name;
  std::string usage;  // the line after "Usage: ", without the name of the program
  std::string summary;
  std::vector<Argument> arguments;
  std::vector<std::string> examples;
  std::string notes;    // follows the examples in the help
  bool hidden = false;  // for the program itself: the help does not list it
  /// Does what the verb is for. Returns the exit status.
  std::function<Result<int>(Output&)> run;
};

struct CommandLine {
  std::string name;
  std::string version;
  std::string summary;
  std::string usage;
  std::vector<Argument> arguments;  // options that precede the verb
  std::vector<Verb> verbs;
  std::string notes;  // end of the help
  /// The verb of a command line that has only one word, and that word is not a verb; empty: none.
  std::string default_verb;
};

/// Returns the verb with this name; null if there is none.
const Verb* FindVerb(const CommandLine& line, const std::string& name);

/// Returns whether a value of the argument is the address of a store that exists.
bool NamesStore(const Argument& argument);

/// Parses `words` (without the name of the program) into the targets of the arguments. Returns the
/// verb, which points into `line`; nullptr if nothing remains to be done because help or version
/// was printed. kInvalidArgument: the command line is not valid; the message has one line.
Result<const Verb*> ParseCommandLine(const CommandLine& line, std::vector<std::string> words);

/// The `main` function that all programs share: parses the command line, runs its verb and returns
/// the exit status of the process. An error is printed as one line, "NAME: what, where, why", on
/// standard error. No exception leaves this function. `argv` comes from `main`.
int RunProgram(CommandLine line, int argc, char** argv);

}  // namespace cairn::tools
