#pragma once
/// What the programs share: reading the command line, exit statuses, the one line of an error.

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/error.h"
#include "tools/common/exit_status.h"
#include "tools/common/terminal.h"

namespace cairn::tools::internal {

/// Sets locale and streams up, runs `body` and turns its result into an exit status; an error
/// becomes "NAME: what, where, why" on standard error. No exception leaves it.
int RunProgram(std::string_view name, const std::function<Result<int>()>& body);

/// Parses `arguments` (without the program's name). Help and version are printed; nothing is
/// returned then if there is nothing left to do. kInvalidArgument: a usage error, said on one line.
Result<bool> ParseCommandLine(CLI::App& app, std::vector<std::string> arguments);

/// The words of a command line; those of `options` ("--slice") are joined with their value, which
/// may then begin with "-".
std::vector<std::string> JoinValues(int argc, char** argv,
                                    std::span<const std::string_view> options);

/// Puts `default_verb` in front where the only word is no verb. kInvalidArgument: the first of
/// several words is no verb.
Result<void> InsertDefaultVerb(std::vector<std::string>& arguments,
                               std::span<const std::string_view> verbs,
                               std::string_view default_verb);

/// Looks that all programs share: `usage` as it stands, aligned options, examples below.
void StyleHelp(CLI::App& app, const std::string& usage);
/// As StyleHelp, for a whole program: one verb is needed, and --version is known.
void StyleProgram(CLI::App& app, const std::string& usage, const std::string& version);
/// The examples of a verb, one a line, as the footer of its help.
void SetExamples(CLI::App& verb, const std::vector<std::string>& examples);

}  // namespace cairn::tools::internal
