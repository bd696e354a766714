#pragma once
/// `kv-admin merge`: a new step of weighted means of existing steps.

#include <cstdint>
#include <string>
#include <vector>

#include "tools/common/command_line.h"

namespace cairn::tools {

struct MergeCommand {
  std::vector<std::string> addresses;  // STORE@STEP, or several steps: STORE@{STEP,...}
  std::string weights;                 // as the user wrote them; empty: equal
  uint64_t into = 0;                   // number of the new step
  bool overwrite = false;
};

/// The command receives what the user wrote, and outlives the verb.
Verb MergeVerb(MergeCommand& command);

}  // namespace cairn::tools
