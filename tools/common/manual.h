#pragma once
/// The manual page of a program, from the declaration of its command line.

#include <string>

#include "tools/common/command_line.h"

namespace cairn::tools {

/// Returns the page in section 1, in the language of man(7).
std::string ManualPage(const CommandLine& line);

}  // namespace cairn::tools
