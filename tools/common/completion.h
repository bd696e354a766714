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

/// Returns what the last of `words`, which may be empty, can be completed to; the others precede it
/// on the command line, without the name of the program. Each line has a word and, after a tab, its
/// help if there is some; without lines, the word may be any file. Opens a store in a directory to
/// find its steps, tags and keys. Never fails: what cannot be found is left out.
std::string CompletionLines(const CommandLine& line, const std::vector<std::string>& words);

/// Returns the script for "bash", "zsh" or "fish". kInvalidArgument: another shell.
Result<std::string> CompletionScript(const std::string& program, const std::string& shell);

}  // namespace cairn::tools
