#pragma once
/// Child processes whose output is read.

#include <string>
#include <vector>

#include "kv/base/error.h"

namespace cairn::tools {

struct FinishedChild {
  int status = 0;  // as waitpid returns it
  std::string output;
};

enum class ChildOutput { kStandardOutput, kStandardOutputAndError };

/// Runs `program` (searched in PATH unless it has a "/") with `words` as its arguments, the name of
/// the program first, and waits for its end. kUnavailable or the error of the system: it could not
/// be started.
Result<FinishedChild> RunChild(const std::string& program, std::vector<std::string> words,
                               ChildOutput captured);

}  // namespace cairn::tools
