#pragma once
/// Completion of command lines in bash, zsh and fish.
///
/// The script of a shell calls `NAME --complete WORD...` for each Tab, so that the declaration of
/// the program is the only list of verbs, options and choices.

#include <string>
#include <vector>

#include "kv/base/error.h"
#include "tools/common/command_line.h"

namespace cairn::tools {

/// A word that may stand where the user is typing.
struct Candidate {
  std::string word;  // complete, with what the user has typed
  std::string help;  // may be empty
};

/// Returns the candidates for the last of `words`, which may be empty; the others precede it on
/// the command line, without the name of the program. None: any file. Opens a store in a directory
/// to complete its steps, tags and keys. Never fails: what cannot be found is left out.
std::vector<Candidate> Complete(const CommandLine& line, const std::vector<std::string>& words);

/// Returns candidates as lines of a word and, if there is one, a tab and its help.
std::string CandidateLines(const std::vector<Candidate>& candidates);

/// Returns the script for "bash", "zsh" or "fish". kInvalidArgument: another shell.
Result<std::string> CompletionScript(const std::string& program, const std::string& shell);

}  // namespace cairn::tools
