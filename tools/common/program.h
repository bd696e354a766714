#pragma once
/// The `main` function that all programs share.

#include "tools/common/command_line.h"

namespace cairn::tools {

/// Parses the command line, runs its verb and returns the exit status of the process. An error is
/// printed as one line, "NAME: what, where, why", on standard error. No exception leaves this
/// function. `argv` comes from `main`.
int RunProgram(CommandLine line, int argc, char** argv);

}  // namespace cairn::tools
