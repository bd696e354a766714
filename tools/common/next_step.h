#pragma once
/// What to try after a verb has failed.

#include <string>

#include "kv/base/error.h"
#include "tools/common/command_line.h"

namespace cairn::tools {

/// Returns the command or the option to try next; empty: the message of the error names it, or
/// nothing is known that would help.
std::string NextStep(const Verb& verb, const Error& error);

}  // namespace cairn::tools
